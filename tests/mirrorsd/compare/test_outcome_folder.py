"""What a comparison of both worlds leaves in a folder names nothing outside of it, so it can be moved."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.errors import ConfigError, MirrorsdError, TraceError
from decoding.trace import LaneEvent, Trace
from hwprofiles.profile import save_profile
from mirrorsd.cli.console import write_json
from mirrorsd.compare.measured_answer import candidates_of, judge_runs
from mirrorsd.compare.outcome_folder import REPORT, Outcome, read_judged, read_report_data, write_outcome
from mirrorsd.compare.present_pace import paces_in_words
from mirrorsd.compare.runs import Measured, save_traces
from planner.plan import make_plan
from planner.search.search import pick_demo_schedules
from planner.search.space import SearchSpace
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import acceptance_record, machine

SPACE = SearchSpace(windows=(1, 2, 3), uneven_roots=())
USE = "mirrorsd run --schedule out/best.yaml --target 'my model' --prompt 'Why is the sky blue?'"

PACES = {"target": 0.9, "draft": 1.0, "both": 0.9}
"""Of the lanes just before the runs."""


@pytest.fixture(scope="module")
def plan():
    record = acceptance_record(num_prompts=2, num_tokens=40)
    return make_plan(SPACE, machine(pooled_speed=1.15), record)


@pytest.fixture(scope="module")
def judged(plan):
    """Runs on a machine that was slower than calibrated for the second prompt; one lost its draft at first."""
    schedules = [one.schedule for one in pick_demo_schedules(plan.search)]
    at_present = plan.profile.at_paces(PACES)
    plain, *others = made_up_runs(schedules, at_present, plan.record, paces=[1.0, 1.5]).runs
    lost = Trace(world="measured", events=[LaneEvent(0.5, "draft", "it hung")])
    others[0] = (replace(others[0][0], given_up=lost), *others[0][1:])
    others[0][1].trace.events.append(LaneEvent(0.9, "draft", "no room", is_loss=False))
    candidates = candidates_of(schedules, at_present, plan.record)
    return judge_runs(candidates, Measured(runs=(plain, *others)), at_present, plan.record)


@pytest.fixture
def outcome(plan, judged):
    """A made-up comparison whose profile and record lie in `out`."""
    save_profile(plan.profile, Path("out/profile.yaml"))
    plan.record.save(Path("out/record.npz"))
    return Outcome(
        title="a test",
        plan=plan,
        judged=judged,
        files={"profile": Path("out/profile.yaml"), "record": Path("out/record.npz")},
        facts={"platform": {}},
        dtype="float32",
        warning="Other programs used 1.0 of the 2 cores.",
        sample=("Why?", "Because."),
        run_options=("--target", "my model"),
        paces=PACES,
    )


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Whoever reads it searches among the same few schedules."""
    monkeypatch.setattr("mirrorsd.compare.outcome_folder.SearchSpace", lambda: SPACE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def traces_of(results):
    return [(result.simulated, result.measured) for result in results]


def texts(value):
    """Every text in a JSON value."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def test_no_path_of_the_machine_is_written_down(outcome):
    told = write_outcome(outcome, Path("out"), "result.json")
    written = json.loads(Path("out/result.json").read_text())
    assert not [text for text in texts(written) if str(Path.cwd()) in text]
    assert (written["folder"], written["report"]) == (".", f"out/{REPORT}")
    assert written["files"] == {
        "profile": "profile.yaml",
        "record": "record.npz",
        "traces": "traces.json.gz",
        "runs": "runs.json.gz",
    }
    assert told["folder"] == "out"


def test_the_report_is_made_again_from_a_copy_elsewhere_and_after_a_move(outcome, tmp_path, monkeypatch):
    """The profile lies outside of the folder."""
    Path("out/profile.yaml").rename("profile.yaml")
    outcome.files["profile"] = Path("profile.yaml")
    write_json(write_outcome(outcome, Path("out"), "result.json"), "results/copy.json", relative=["folder"])
    assert json.loads(Path("out/result.json").read_text())["files"]["profile"] == "../profile.yaml"
    monkeypatch.chdir(tmp_path)
    assert traces_of(read_report_data(Path("here/results/copy.json")).results) == traces_of(outcome.judged.results)
    shutil.move("here", "elsewhere")
    found = read_report_data(Path("elsewhere/out/result.json"))
    assert traces_of(found.results) == traces_of(outcome.judged.results)
    assert (found.warning, found.sample, found.command) == (outcome.warning, outcome.sample, USE)
    assert found.measured == outcome.judged.verdict
    assert [one.error for one in found.results] == [one.error for one in outcome.judged.results]
    assert [one.error_at_anchor for one in found.results] == [one.error_at_anchor for one in outcome.judged.results]
    assert found.footnotes[1:] == tuple(json.loads(Path("elsewhere/out/result.json").read_text())["notes"])


def test_another_profile_or_other_traces_than_those_of_the_runs_are_refused(outcome):
    write_outcome(outcome, Path("out"), "result.json")
    traces = Path("out/traces.json.gz").read_bytes()
    save_traces([outcome.judged.results[0].measured], Path("out/traces.json.gz"))
    with pytest.raises(TraceError, match=r"traces\.json\.gz: not traces of \d+ schedules over prompts of"):
        read_report_data(Path("out/result.json"))
    Path("out/traces.json.gz").write_bytes(traces)
    save_profile(machine(pooled_speed=1.3), Path("out/profile.yaml"))
    with pytest.raises(ConfigError, match=r"out/profile\.yaml: not the profile that out/result\.json was made with"):
        read_report_data(Path("out/result.json"))


@pytest.mark.parametrize(("left", "told"), [(None, "profile"), ({"profile", "record", "traces"}, "runs")])
def test_a_result_without_digests_of_its_files_says_so(outcome, left, told):
    write_outcome(outcome, Path("out"), "result.json")
    written = json.loads(Path("out/result.json").read_text())
    older = written | {"sha256": {name: written["sha256"][name] for name in left or ()}}
    if left is None:
        del older["sha256"]
    Path("out/result.json").write_text(json.dumps(older))
    with pytest.raises(ConfigError) as refused:
        read_report_data(Path("out/result.json"))
    file = Path("out", written["files"][told])
    why = f"out/result.json: has no SHA-256 of its {told}, so {file} may have changed"
    assert str(refused.value) == f"{why}; run `{outcome.title}` again"


def test_runs_go_elsewhere_where_the_folder_cannot_be_written_in_the_end(outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Path("out/traces").write_text("no folder")
    result = write_outcome(replace(outcome, warnings=("Said first.",)), Path("out"), "result.json")
    other = Path(result["folder"])
    assert other.parent == tmp_path
    told, *rest = result["warnings"]
    assert told.startswith("out cannot be written (")
    assert told.endswith(f": the result is in {other} instead.")
    assert "Said first." in rest
    assert traces_of(read_report_data(other / "result.json").results) == traces_of(outcome.judged.results)


def test_a_result_that_can_be_written_nowhere_leaves_no_folder(outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_):
        raise ConfigError("no space left")

    monkeypatch.setattr("mirrorsd.compare.outcome_folder.save_traces", full)
    before = list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="no space left"):
        write_outcome(outcome, Path("out"), "result.json")
    assert list(tmp_path.iterdir()) == before


def test_a_file_that_is_gone_is_named(outcome):
    write_outcome(outcome, Path("out"), "result.json")
    for name in ("runs", "traces"):
        Path(f"out/{name}.json.gz").unlink()
        with pytest.raises(MirrorsdError, match=rf"out/{name}\.json\.gz"):
            read_report_data(Path("out/result.json"))
        write_outcome(outcome, Path("out"), "result.json")


def test_scripts_get_every_schedule_at_both_speeds_and_what_was_lost(outcome):
    result = write_outcome(outcome, Path("out"), "result.json")
    lost = f"The run of {outcome.judged.names[1]} on text 1 of 2 lost lane draft (it hung); the run was repeated."
    full = f"The run of {outcome.judged.names[1]} on text 2 of 2: no room; the run counts all the same."
    assert result["notes"][:2] == [lost, full]
    [before, speed] = result["notes"][2:]
    assert before == paces_in_words(PACES)
    assert {before, speed} <= set(result["warnings"])
    assert speed.startswith("During the runs this machine had 0.79× its speed just before them")
    entries = result["schedules"]
    for entry in entries:
        at_anchor = entry["predicted"]["tpot_s"] / entry["measured"]["tpot_s_at_anchor"] - 1
        assert entry["tpot_error_at_anchor"] == pytest.approx(at_anchor, abs=1e-9)
        assert entry["tpot_error_at_anchor"] == pytest.approx(0.0, abs=1e-9)
        assert entry["tpot_error"] < -0.1
        assert entry["rounds_equal"] == {"equal": 2, "of": 2}
        assert set(entry["speedup_measured"]) == {"value", "low", "high"}
    told = ["draft: it hung", "draft: no room"]
    assert [entry["events"] for entry in entries] == [[], told, *([[]] * (len(entries) - 2))]
    plain = min(
        (one for one in entries if one["method"] == "autoregressive"), key=lambda one: one["predicted"]["tpot_s"]
    )
    assert plain["speedup_measured"]["value"] == 1
    for entry in entries:
        ratio = plain["measured"]["tpot_s"] / entry["measured"]["tpot_s"]
        assert entry["speedup_measured"]["value"] == pytest.approx(ratio)


def test_a_schedule_that_was_given_names_its_file_as_seen_from_the_folder(outcome):
    first, *_ = outcome.judged.results
    given = {first.candidate.schedule: Path("schedules/mine.yaml")}
    entries = write_outcome(replace(outcome, given=given), Path("out"), "result.json")["schedules"]
    assert [entry.get("file") for entry in entries] == ["../schedules/mine.yaml"] + [None] * (len(entries) - 1)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_something_else_than_a_result_is_refused(content, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"^{path}: not a result that "):
        read_report_data(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"title": None}, "title: "),
        ({"schedules": []}, "schedules: "),
        ({"notes": [float("nan")]}, "NaN is no number of JSON"),
        ({"files": {"profile": "profile.yaml"}}, r"files\.record: Field required"),
        ({"schedules": [{"schedule": {"method": "mirror"}}]}, r"schedules\.0\.schedule"),
    ],
)
def test_a_damaged_result_is_refused(outcome, changes, complaint):
    write_outcome(outcome, Path("out"), "result.json")
    written = json.loads(Path("out/result.json").read_text()) | changes
    Path("out/result.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=rf"out/result\.json: not a result .*{complaint}"):
        read_report_data(Path("out/result.json"))


def test_runs_of_cut_texts_and_unequal_prompts_are_judged_anew_without_a_search(plan, outcome, monkeypatch):
    candidates = pick_demo_schedules(plan.search)
    cut = replace(plan.record, prompts=tuple(prompt.cut(10) for prompt in plan.record.prompts))
    all_runs = made_up_runs([one.schedule for one in candidates], plan.profile, cut).runs
    measured = Measured(runs=(*all_runs[:3], *(row[:1] for row in all_runs[3:])), cuts=(10, 10))
    more = acceptance_record(num_prompts=5, num_tokens=40)
    more = replace(more, prompts=tuple(replace(one, name=f"more {one.name}") for one in more.prompts))
    more.save(Path("out/more.npz"))
    made = judge_runs(candidates, measured, plan.profile, plan.record, more)
    files = outcome.files | {"more": Path("out/more.npz")}
    entries = write_outcome(replace(outcome, judged=made, files=files, paces={}), Path("out"), "result.json")
    monkeypatch.setattr("mirrorsd.compare.outcome_folder.make_plan", None)
    again = read_judged(Path("out/result.json"))
    assert again.comparisons == made.comparisons
    assert [one.num_prompts for one in again.comparisons] == [one["num_prompts"] for one in entries["schedules"]]
    assert again.num_recorded == made.num_recorded == 2 + 5
    assert (
        again.verdict.speedup
        == made.verdict.speedup
        != judge_runs(candidates, measured, plan.profile, plan.record).verdict.speedup
    )
    assert again.verdict.by_length[40].num_pairs == 7
    assert again.verdict.pays == made.verdict.pays
