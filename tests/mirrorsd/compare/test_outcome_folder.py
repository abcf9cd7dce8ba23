"""What a comparison of both worlds leaves in a folder names nothing outside of it, so it can be moved."""

import json
import shutil
from pathlib import Path

import pytest

from decoding.errors import ConfigError, MirrorsdError, TraceError
from decoding.trace import LaneEvent
from hwprofiles.profile import save_profile
from mirrorsd.cli.json_option import write_json
from mirrorsd.compare.both_worlds import compare_all
from mirrorsd.compare.outcome_folder import REPORT, Outcome, read_report_data, unique_names, write_outcome
from mirrorsd.compare.trace_file import save_traces
from tests.planner.report.synthetic_report import report_data
from tests.planner.synthetic import acceptance_record


@pytest.fixture(scope="module")
def data():
    return report_data(record=acceptance_record(num_prompts=2, num_tokens=40), num_repeats=1)


@pytest.fixture
def outcome(data):
    """A made-up comparison whose profile and record lie in `out`."""
    record = data.plan.record
    save_profile(data.plan.profile, Path("out/profile.yaml"))
    record.save(Path("out/record.npz"))
    return Outcome(
        title="a test",
        plan=data.plan,
        results=data.results,
        comparisons=tuple(compare_all(data.results, unique_names(data.results, data.plan), record)),
        files={"profile": Path("out/profile.yaml"), "record": Path("out/record.npz")},
        facts={"platform": {}},
        dtype="float32",
    )


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
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
    assert written["files"] == {"profile": "profile.yaml", "record": "record.npz", "traces": "traces.json.gz"}
    assert told["folder"] == "out"


def test_the_report_is_made_again_after_the_folder_was_moved(outcome, tmp_path):
    write_outcome(outcome, Path("out"), "result.json")
    shutil.move("out", tmp_path / "elsewhere")
    assert traces_of(read_report_data(tmp_path / "elsewhere" / "result.json").results) == traces_of(outcome.results)


def test_the_report_is_made_again_from_a_copy_in_another_folder(outcome, tmp_path, monkeypatch):
    write_json(write_outcome(outcome, Path("out"), "result.json"), "results/copy.json", relative=["folder"])
    monkeypatch.chdir(tmp_path)
    assert traces_of(read_report_data(Path("here/results/copy.json")).results) == traces_of(outcome.results)


def test_what_lies_outside_of_the_folder_is_told_from_there(outcome):
    Path("out/profile.yaml").rename("profile.yaml")
    outcome.files["profile"] = Path("profile.yaml")
    write_outcome(outcome, Path("out"), "result.json")
    assert json.loads(Path("out/result.json").read_text())["files"]["profile"] == "../profile.yaml"
    assert traces_of(read_report_data(Path("out/result.json")).results) == traces_of(outcome.results)


def test_a_file_that_is_gone_is_named(outcome):
    write_outcome(outcome, Path("out"), "result.json")
    Path("out/traces.json.gz").unlink()
    with pytest.raises(MirrorsdError, match=r"out/traces\.json\.gz"):
        read_report_data(Path("out/result.json"))


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


def test_traces_of_other_schedules_are_refused(outcome):
    write_outcome(outcome, Path("out"), "result.json")
    save_traces([outcome.results[0].measured[0]], Path("out/traces.json.gz"))
    with pytest.raises(TraceError, match=r"traces\.json\.gz: not traces of \d+ schedules over prompts of"):
        read_report_data(Path("out/result.json"))


def test_a_draft_that_was_lost_is_told_in_the_result_and_in_the_report(outcome):
    lost, name = outcome.results[1].measured[0][0], outcome.comparisons[1].schedule
    lost.events.append(LaneEvent(0.5, "draft", "it has not answered for 2 s; the target goes on alone"))
    try:
        told = write_outcome(outcome, Path("out"), "result.json")
    finally:
        lost.events.clear()
    sentence = (
        f"In 1 text of 2 of {name} something happened to a lane; the first: draft: it has not answered for 2 s; the "
        "target goes on alone."
    )
    assert told["rounds"].startswith(sentence)
    assert sentence in read_report_data(Path("out/result.json")).footnotes[0]
    assert "something happened" not in write_outcome(outcome, Path("out"), "result.json")["rounds"]
