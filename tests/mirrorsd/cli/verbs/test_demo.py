"""The whole product once, end to end: lanes that are processes, a tiny random model, float32."""

import json
import os
import shlex
from pathlib import Path

import pytest

from calibrate.profiling.anchors import lanes_of
from decoding.files import locked
from decoding.metrics import tpot_s
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, load_schedule, save_schedule
from hwprofiles.host import lanes_of as lanes_on
from hwprofiles.lane_profile import DECODING_PARTS
from hwprofiles.profile import load_profile, save_profile
from mirrorsd.compare.runs import load_runs, load_traces
from tests.journeys import quick
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.mirrorsd.cli.interrupt import FEW_SIZES, interrupted
from tests.tiny_models import EOS

PROMPTS = ("w5 w17 w3 w44 w8", "w9 w9 w4", "w60 w2 w33 w12")
FIGURES = {"tpot_s", "num_rounds", "num_accepted_tokens", "mean_acceptance_length", "reuse_rate"}
pytestmark = pytest.mark.usefixtures("forked_lanes")
two_cores = pytest.mark.skipif(len(lanes_on("cpu")) < 3, reason="mirror needs two cores, and this machine has one")


def call_quickly(*words):
    """A calibration of few sizes, however much time there is."""
    with pytest.MonkeyPatch.context() as patch:
        quick.few_sizes(patch.setattr)
        return call(*words)


@pytest.fixture(scope="session")
def models(tiny_folders):
    return ("--target", tiny_folders.target, "--drafter", tiny_folders.drafter, "--exits", tiny_folders.exits)


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


@pytest.fixture(scope="module")
def demo(models, head_folders, prompts, tmp_path_factory, forked_lanes):
    """(its folder, what it printed, the JSON object); a head and streams are there as well."""
    root = tmp_path_factory.mktemp("demo")
    words = ("--heads", f"{head_folders['eagle']},{head_folders['streams']}", "--prompts", prompts, "--seed", 5)
    words += ("--dtype", "float32", "--max-new-tokens", 12, "--max-window", 3, "--minutes", 60)
    result = call_quickly("demo", *models, *words, "--out", root / "out", "--json", root / "demo.json")
    assert result.exit_code == 0, result.stderr
    return root / "out", result, json.loads((root / "demo.json").read_text())


def test_scripts_get_what_was_promised(demo):
    folder, _, result = demo
    assert {"platform", "calibration_s", "schedules", "winner", "verdict", "report"} <= set(result)
    assert len(result["schedules"]) >= 8
    for entry in result["schedules"]:
        predicted, measured = entry["predicted"], entry["measured"]
        assert FIGURES | {"tpot_s_low", "tpot_s_high"} <= set(predicted)
        assert set(measured) >= FIGURES
        assert entry["tpot_error"] == pytest.approx(predicted["tpot_s"] / measured["tpot_s"] - 1)
        assert entry["tpot_error_at_anchor"] == pytest.approx(predicted["tpot_s"] / measured["tpot_s_at_anchor"] - 1)
        assert Schedule.model_validate(entry["schedule"]).method == entry["method"]
        assert entry["placement"] in ("split", "pooled")
        ratio = entry["speedup_measured"]
        assert ratio["low"] <= ratio["value"] <= ratio["high"]
    names = [entry["name"] for entry in result["schedules"]]
    assert len(set(names)) == len(names)
    assert result["winner"] in names
    assert result["calibration_s"] > 0
    assert result["platform"]["dtype"] == "float32"
    assert Path(result["report"]) == folder / "report.html"
    plain = [entry for entry in result["schedules"] if entry["method"] == "autoregressive"]
    reference = min(plain, key=lambda entry: entry["predicted"]["tpot_s"])
    assert reference["speedup_measured"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert result["pays"] in ("yes", "no", "cannot_tell")
    assert set(result["speedup"]) == {"value", "low", "high", "scope", "of", "over", "num_prompts"}
    assert {result["speedup"]["of"], result["speedup"]["over"]} <= set(names)
    assert {entry["plain"] for entry in result["schedules"]} == {reference["name"]}
    for scope in ("these_prompts", "like_these"):
        ratio = result["speedup"]["scope"][scope]
        assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert result["speedup"]["scope"]["like_these"]["low"] <= result["speedup"]["scope"]["these_prompts"]["low"]
    assert result["num_recorded_prompts"] == len(PROMPTS)
    assert 0 <= result["coverage"] <= 1
    assert (result["seed"], result["turns_at"]) == (5, None)
    assert [one["max_new_tokens"] for one in result["by_length"]] == [12]
    assert result["busy"] is None or 0 <= result["busy"] <= 1


def test_the_anchors_of_all_runs_are_saved(demo):
    folder, _, result = demo
    measured = load_runs(folder / "runs.json.gz", load_traces(folder / "traces.json.gz"))
    for entry, runs in zip(result["schedules"], measured.runs, strict=True):
        schedule = Schedule.model_validate(entry["schedule"])
        for run in runs:
            assert set(run.anchors.alone) == set(lanes_of(schedule))
            assert all(len(taken) >= 2 and min(taken) > 0 for taken in run.anchors.alone.values())
            assert (len(run.anchors.shared) >= 2) == (schedule.method == "mirror")


def test_the_answer_comes_with_a_text_of_the_target_and_a_command_that_runs(demo, models, prompts):
    folder, shown, result = demo
    record = AcceptanceRecord.load(folder / "record.npz")
    assert result["sample"]["prompt"] in PROMPTS
    assert result["sample"]["answer"].split() == [f"w{token}" for token in record.prompts[0].text if token != EOS]
    assert result["command"].startswith(f"mirrorsd run --schedule {folder / 'best.yaml'} --target {models[1]}")
    assert f"Use the recommended schedule: {result['command']}" in shown.stderr
    words = shlex.split(result["command"])[1:]
    again = call(*words, "--max-new-tokens", 4, "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["num_tokens"] >= 1


def test_in_float32_both_worlds_go_through_the_same_rounds(demo):
    result = demo[2]
    assert result["accuracy"]["same_rounds"]
    for entry in result["schedules"]:
        for name in ("num_rounds", "num_accepted_tokens", "mean_acceptance_length", "reuse_rate", "num_tokens"):
            assert entry["predicted"][name] == entry["measured"][name]
        assert entry["divergences"] == entry["events"] == []
        assert entry["rounds_equal"] == {"equal": entry["num_prompts"], "of": entry["num_prompts"]}


@two_cores
def test_every_kind_is_run_in_every_placement_it_has(demo):
    kinds = {(entry["method"], entry["placement"]) for entry in demo[2]["schedules"]}
    assert kinds >= {(method, place) for method in ("autoregressive", "speculative") for place in ("split", "pooled")}
    sources = {entry["schedule"].get("root_source") for entry in demo[2]["schedules"]}
    assert sources >= {"exit", "draft", "hybrid"}


def test_the_best_tree_is_run_too_and_named_with_its_head(demo, head_folders):
    trees = [entry for entry in demo[2]["schedules"] if entry["method"] in ("eagle2", "speculative_streaming")]
    assert trees
    for entry in trees:
        head = "eagle" if entry["method"] == "eagle2" else "streams"
        assert entry["schedule"]["drafter"] == str(head_folders[head])
        assert entry["same_rounds"]


def test_people_get_a_table_a_verdict_and_the_way_to_the_report(demo):
    folder, shown, result = demo
    for entry in result["schedules"]:
        assert entry["name"] in shown.stdout
    assert result["verdict"] in shown.stdout
    assert f"Report: {folder / 'report.html'}" in shown.stdout
    for stage in ("Calibrating", "Recording", "Searching", "Running", "Writing the report"):
        assert stage in shown.stderr
    assert "left" in shown.stderr


def test_everything_that_was_made_is_in_the_folder_and_can_be_used(demo):
    folder, _, result = demo
    assert load_profile(folder / "profile.yaml").relative_error >= 0
    assert len(AcceptanceRecord.load(folder / "record.npz").prompts) == result["num_prompts"]
    winner = next(entry for entry in result["schedules"] if entry["name"] == result["winner"])
    assert load_schedule(folder / "best.yaml") == Schedule.model_validate(winner["schedule"])
    files = sorted((folder / "schedules").iterdir())
    assert [load_schedule(path) for path in files] == [
        Schedule.model_validate(entry["schedule"]) for entry in result["schedules"]
    ]
    assert len(list((folder / "traces").iterdir())) == len(files)
    assert "https://" not in (folder / "report.html").read_text().split("<script>")[0]


def test_the_report_can_be_made_again_from_what_was_saved(demo, tmp_path):
    folder, _, _ = demo
    page = tmp_path / "again.html"
    for named in (folder / "demo.json", folder):
        call("report", named, "--out", page, exit_code=0)
        assert page.read_bytes() == (folder / "report.html").read_bytes()
        page.unlink()


def test_the_winner_runs_as_it_was_simulated(demo, models, prompts, tmp_path):
    folder, _, _ = demo
    files = ("--schedule", folder / "best.yaml", "--profile", folder / "profile.yaml")
    settings = ("--dtype", "float32", "--max-new-tokens", 12, "--prompts", prompts)
    run = json_of("run", *models[:2], *models[4:], *files, *settings)
    simulated = json_of("simulate", *files, "--record", folder / "record.npz")
    rows = {row["prompt_id"]: row for row in run["prompts"]}
    for row in simulated["prompts"]:
        for name in ("token_ids", "num_rounds", "accept_lengths"):
            assert rows[row["prompt_id"]][name] == row[name]


def test_schedules_of_ones_own_are_validated_on_the_same_evidence(demo, models, prompts, tmp_path):
    folder, _, result = demo
    files = ("--profile", folder / "profile.yaml", "--record", folder / "record.npz", "--prompts", prompts)
    schedule = min((folder / "schedules").iterdir())
    trees = [entry["schedule"] for entry in result["schedules"] if "tree_size" in entry["schedule"]]
    smaller = Schedule.model_validate(trees[0] | {"tree_size": trees[0]["num_speculative_tokens"]})
    save_schedule(smaller, tmp_path / "tree.yaml")
    schedules = ("--schedule", schedule, "--schedule", tmp_path / "tree.yaml")
    words = ("validate", *files, *models[4:], *schedules, "--out", tmp_path / "out")
    generation = models[1] / "generation_config.json"
    generation.write_text('{"repetition_penalty": 1.1}')
    try:
        shown = call(*words)
    finally:
        generation.unlink()
    assert shown.exit_code == 0, shown.stderr
    assert f"All {2 * len(PROMPTS)} texts had exactly the simulated rounds." in shown.stdout
    result = json.loads((tmp_path / "out" / "validate.json").read_text())
    assert [entry["same_rounds"] for entry in result["schedules"]] == [True, True]
    assert f"{generation} asks for repetition_penalty 1.1, which is not applied" in result["warnings"][0]
    assert shown.stdout.count("repetition_penalty 1.1") == 1
    assert (tmp_path / "out" / "report.html").exists()
    said = "not on these prompts and answers"
    assert [said in note for note in result["notes"]].count(True) == 1
    assert said in " ".join(shown.stdout.split())
    for entry, traces in zip(result["schedules"], load_traces(tmp_path / "out" / "traces.json.gz"), strict=True):
        predicted, measured = entry["predicted"], entry["measured"]
        assert measured["tpot_s"] == pytest.approx(tpot_s(traces))
        assert entry["tpot_error"] == pytest.approx(predicted["tpot_s"] / measured["tpot_s"] - 1)
        assert predicted["tpot_s_low"] <= predicted["tpot_s"] <= predicted["tpot_s_high"]


def test_a_disk_without_room_for_results_is_found_before_anything_is_measured(
    demo, models, prompts, tmp_path, full_disk
):
    folder, _, _ = demo
    full_disk(os, "posix_fallocate")
    schedule = min((folder / "schedules").iterdir())
    files = ("--profile", folder / "profile.yaml", "--record", folder / "record.npz", "--prompts", prompts)
    out = tmp_path / "out"
    for words in (
        ("validate", "--schedule", schedule, *files, "--out", out),
        ("demo", *models, "--prompts", prompts, "--out", out),
        ("calibrate", *models, "--prompts", prompts, "--out", out / "profile.yaml"),
    ):
        assert f"{out}: no room for results" in error_of(*words)
        assert not out.exists()


def test_two_at_once_do_not_write_into_one_folder(demo, models, prompts, tmp_path):
    folder, _, _ = demo
    files = ("--profile", folder / "profile.yaml", "--record", folder / "record.npz", "--prompts", prompts)
    schedule = min((folder / "schedules").iterdir())
    for words in (("validate", "--schedule", schedule, *files), ("demo", *models, "--prompts", prompts)):
        with locked(tmp_path):
            assert f"{tmp_path}: another run is writing into it" in error_of(*words, "--out", tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_longer_texts_than_were_calibrated_are_validated_with_a_warning(demo, models, prompts, tmp_path):
    """The profile's tables end after three cached tokens, as if it had been calibrated for those."""
    folder, _, _ = demo
    profile = load_profile(folder / "profile.yaml")

    def cut(table, _):
        return table.model_copy(update={"contexts": (0, 2, 3)}) if len(table.contexts) == 3 else table

    lanes = tuple(lane.changed(dict.fromkeys(DECODING_PARTS), cut) for lane in profile.lanes)
    save_profile(profile.model_copy(update={"lanes": lanes, "samples": None}), tmp_path / "short.yaml")
    assert load_profile(tmp_path / "short.yaml").lanes[0].layer.contexts == (0, 2, 3)
    schedule = min((folder / "schedules").iterdir())
    files = ("--profile", tmp_path / "short.yaml", "--record", folder / "record.npz", "--prompts", prompts)
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    shown = call("validate", "--schedule", schedule, *files, "--out", out, "--json", figures)
    assert shown.exit_code == 0, shown.stderr
    result = json.loads(figures.read_text())
    told = [warning for warning in result["warnings"] if "are extrapolated" in warning]
    assert len(told) == 1
    assert told[0].startswith(f"{folder / 'record.npz'}: its texts have ")
    assert told[0] in " ".join(shown.stdout.split())
    assert any("on made-up text with 0 to 3 cached tokens" in note for note in result["notes"])
    (entry,) = result["schedules"]
    assert entry["predicted"]["tpot_s_low"] <= entry["predicted"]["tpot_s"] <= entry["predicted"]["tpot_s_high"]
    assert call("report", out, "--out", tmp_path / "again.html").exit_code == 0


_STOPPED = """
import os, signal
from mirrorsd.compare import run_in_turn
real, seen = run_in_turn._Turns.run, set()
def run(self, schedule, prompt, cut):
    seen.add(prompt.name)
    if len(seen) == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return real(self, schedule, prompt, cut)
run_in_turn._Turns.run = run
"""
"""What a validation begins with that is to be stopped in the second prompt."""


def test_a_validation_that_is_stopped_keeps_the_prompts_that_were_over(demo, prompts, tmp_path):
    folder, out = demo[0], tmp_path / "out"
    files = ("--profile", folder / "profile.yaml", "--record", folder / "record.npz", "--prompts", prompts)
    words = ("validate", "--schedule", min((folder / "schedules").iterdir()), *files, "--out", out)
    status, stdout, stderr = interrupted(words, said="Stopping.", first=_STOPPED)
    assert (status, stdout) == (130, "")
    assert f"Interrupted. The result of 1 prompt is in {out}." in stderr
    result = json.loads((out / "validate.json").read_text())
    assert result["num_prompts"] == 1
    assert f"Stopped early: 1 of {len(PROMPTS)} prompts were run." in result["warnings"]
    assert call("report", out, "--out", tmp_path / "again.html").exit_code == 0


def test_evidence_of_different_models_is_refused(demo, tmp_path):
    folder, _, _ = demo
    profile = tmp_path / "profile.yaml"
    profile.write_text((folder / "profile.yaml").read_text().replace("dtype: float32", "dtype: bfloat16"))
    schedule = min((folder / "schedules").iterdir())
    assert "was measured with dtype bfloat16" in error_of(
        "validate", "--schedule", schedule, "--profile", profile, "--record", folder / "record.npz"
    )


def test_ctrl_c_tells_what_is_there_already_and_leaves_no_half_file(models, prompts, tmp_path):
    sizes = ("--dtype", "float32", "--max-new-tokens", 12, "--max-window", 3)
    lane = lanes_on("openvino:CPU")[0].name
    words = ("demo", *models, "--prompts", prompts, *sizes, "--minutes", 0.5, "--lanes", lane, "--out", tmp_path)
    status, stdout, stderr = interrupted(words, said="] Recording", first=FEW_SIZES)
    assert (status, stdout) == (130, "")
    assert "\nStopping.\n" in stderr
    assert f"Interrupted. The profile is in {tmp_path / 'profile.yaml'}." in stderr
    assert "Traceback" not in stderr
    assert load_profile(tmp_path / "profile.yaml").num_layers == 4
    assert not (tmp_path / "demo.json").exists()
    assert not (tmp_path / "report.html").exists()
    for path in tmp_path.glob("*.npz"):
        assert AcceptanceRecord.load(path).prompts
