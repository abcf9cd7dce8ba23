import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.prompts import bundled_prompts
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, save_schedule
from hwprofiles.lane_profile import DECODING_PARTS
from hwprofiles.profile import load_profile, save_profile
from planner.wording import duration
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.planner.synthetic import EXIT_MIRROR


@pytest.fixture
def schedule_path(tmp_path):
    path = tmp_path / "mirror.yaml"
    save_schedule(EXIT_MIRROR, path)
    return path


@pytest.fixture
def words(schedule_path, profile_path, record_path):
    return ("simulate", "--schedule", schedule_path, "--profile", profile_path, "--record", record_path)


def test_figures_and_rows_are_those_of_the_recorded_texts(words, record_path):
    result = json_of(*words)
    record = AcceptanceRecord.load(record_path)
    assert [row["prompt_id"] for row in result["prompts"]] == [prompt.name for prompt in record.prompts]
    assert [row["token_ids"] for row in result["prompts"]] == [prompt.text.tolist() for prompt in record.prompts]
    for row in result["prompts"]:
        assert (len(row["accept_lengths"]), sum(row["accept_lengths"])) == (row["num_rounds"], len(row["token_ids"]))
    assert result["num_rounds"] == sum(row["num_rounds"] for row in result["prompts"])
    assert result["decode_s"] == pytest.approx(sum(row["decode_s"] for row in result["prompts"]))
    assert result["tpot_s"] == pytest.approx(result["decode_s"] / result["num_tokens"])
    assert result["tpot_s_low"] <= result["tpot_s"] <= result["tpot_s_high"]
    assert 0 < result["reuse_rate"] < 1
    assert sum(result["bottlenecks_s"].values()) == pytest.approx(result["decode_s"])


def test_whole_requests_are_told_where_reading_prompts_was_measured_and_else_not(words, tmp_path):
    demo = Path("benchmarks/results/demos/1")
    save_schedule(Schedule(method="autoregressive", target_lane="openvino:CPU@0"), tmp_path / "plain.yaml")
    asked = ("simulate", "--schedule", tmp_path / "plain.yaml", "--profile", demo / "profile.yaml")
    asked += ("--record", demo / "record.npz")
    found = json_of(*asked)
    count = len(found["prompts"])
    assert 0 < found["prefill_s"] / count < found["ttft_s"] < found["e2e_s"]
    assert found["e2e_s"] == pytest.approx((found["prefill_s"] + found["decode_s"]) / count)
    first, last = duration(found["ttft_s"]), duration(found["e2e_s"])
    assert f"first token comes after {first} and its last after {last}" in call(*asked).stdout
    assert json_of(*words)["ttft_s"] is None
    assert "first token" not in call(*words).stdout


@pytest.fixture
def other_record(record_path):
    """Of a pair that the profile knows nothing about."""
    replace(AcceptanceRecord.load(record_path), target="bigger", drafter="better").save(record_path)
    return record_path


@pytest.mark.parametrize("verb", ["simulate", "search"])
def test_a_record_of_other_models_is_refused_unless_it_is_asked_for(words, verb, other_record, profile_path, tmp_path):
    (tmp_path / "space.yaml").write_text("methods: [speculative]\n")
    given = words if verb == "simulate" else ("search", *words[3:], "--space", tmp_path / "space.yaml")
    refused = error_of(*given)
    assert f"{profile_path} was measured with target SmolLM2-135M-Instruct, drafter four-layer" in refused
    assert f"{other_record} was recorded with target bigger, drafter better" in refused
    given = (*given, "--replayed-acceptance")
    assert "Acceptance is replayed from another pair" in call(*given, exit_code=0).shown
    found = json_of(*given)
    assert "Acceptance is replayed from another pair" in str(found["source" if verb == "simulate" else "warnings"])


def test_the_next_command_is_named_with_all_that_was_given(words, profile_path, record_path, tmp_path):
    files = f"--profile {profile_path} --record {record_path}"
    run = "mirrorsd run --schedule {} --target SmolLM2-135M-Instruct --prompt 'Why is the sky blue?'"
    assert f"Next: {run.format(words[2])}\n" in call(*words).stderr
    assert "Next" not in call(*words, "--json").stderr
    space, best = tmp_path / "my space.yaml", tmp_path / "best.yaml"
    space.write_text("methods: [speculative]\n")
    search = ("search", *words[3:], "--space", space)
    given = f"Next: mirrorsd search {files} --space '{space}' --replayed-acceptance --out best.yaml\n"
    assert given in call(*search, "--replayed-acceptance").stderr
    assert f"Next: {run.format(best)}\n" in call(*search, "--out", best).stderr
    record = AcceptanceRecord.load(record_path)
    names = [prompt.prompt_id for prompt in bundled_prompts()]
    shipped = [replace(prompt, name=name) for prompt, name in zip(record.prompts, names, strict=False)]
    replace(record, prompts=tuple(shipped)).save(record_path)
    assert f"Next: mirrorsd validate --schedule {words[2]} {files}\n" in call(*words).stderr


def test_the_next_command_samples_as_what_was_recorded(words, record_path, tmp_path):
    record, names = AcceptanceRecord.load(record_path), [prompt.prompt_id for prompt in bundled_prompts()]
    sampled = [
        replace(one, name=name, draft_acceptance=np.ones(one.rollouts.shape), refused_drafts=one.rollouts)
        for one, name in zip(record.prompts, names, strict=False)
    ]
    replace(record, prompts=tuple(sampled), temperature=0.7).save(record_path)
    run = "Next: mirrorsd run --schedule {} --target SmolLM2-135M-Instruct --temperature 0.7 --prompt"
    shown = call(*words)
    assert run.format(words[2]) in shown.stderr
    space, best = tmp_path / "space.yaml", tmp_path / "best.yaml"
    space.write_text("methods: [speculative]\n")
    searched = call("search", *words[3:], "--space", space, "--out", best)
    assert run.format(best) in searched.stderr
    unpriced = "Times do not include sampling tokens at temperature 0.7"
    assert unpriced in shown.shown
    assert unpriced in searched.shown
    replace(record, prompts=tuple(sampled), temperature=0.7, target="another").save(record_path)
    replayed = call(*words, "--replayed-acceptance").shown
    assert "Acceptance is replayed from another pair" in replayed
    assert unpriced in replayed


def test_the_trace_holds_every_prompt_and_texts_can_be_cut_shorter(words, tmp_path):
    trace, figures = tmp_path / "trace.json.gz", tmp_path / "figures.json"
    shown = call(*words, "--max-new-tokens", 7, "--trace", trace, "--json", figures)
    assert "ms per token" in shown.stdout
    assert [len(row["token_ids"]) for row in json.loads(figures.read_text())["prompts"]] == [7, 7, 7]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["prompt 0 (simulated)", "prompt 1 (simulated)", "prompt 2 (simulated)"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exit_layer": 7}, "exit"),
        ({"target_lane": "gpu"}, "no lane 'gpu'; it has target, draft, both"),
        ({"num_speculative_tokens": 12}, "12"),
    ],
)
def test_what_was_not_measured_or_recorded_is_refused(words, schedule_path, change, message):
    save_schedule(Schedule.model_validate(EXIT_MIRROR.model_dump() | change), schedule_path)
    assert message in error_of(*words, "--json")


@pytest.mark.parametrize("verb", ["simulate", "search"])
def test_texts_longer_than_was_calibrated_are_extrapolated_with_a_warning(verb, words, profile_path, record_path):
    record = AcceptanceRecord.load(record_path)
    replace(record, prompts=tuple(replace(one, prompt_length=100_000) for one in record.prompts)).save(record_path)
    shown = call(*(words if verb == "simulate" else ("search", *words[3:])), "--json")
    assert shown.exit_code == 0
    assert f"{record_path}: its texts have " in shown.stderr
    (warning,) = (one for one in json.loads(shown.stdout)["warnings"] if "are extrapolated" in one)
    assert f"{profile_path} was calibrated for 0 to 2,048" in warning
    assert "give `mirrorsd calibrate` the prompts that were recorded (--prompts)" in warning


@pytest.mark.parametrize("verb", ["simulate", "search"])
def test_texts_of_which_no_time_is_known_are_refused_with_what_to_run(verb, words, profile_path, record_path):
    """Compiled lanes whose tables are all within one number of slots."""
    profile = load_profile(profile_path)

    def flat(table, _):
        return table.model_copy(update={"contexts": (0, 100, 200)})

    lanes = tuple(
        lane.changed(dict.fromkeys(DECODING_PARTS), flat).model_copy(update={"device": "openvino:CPU"})
        for lane in profile.lanes
    )
    save_profile(profile.model_copy(update={"lanes": lanes}), profile_path)
    record = AcceptanceRecord.load(record_path)
    longer = tuple(replace(one, prompt_length=1000) for one in record.prompts)
    replace(record, prompts=longer, backend="openvino:CPU").save(record_path)
    said = error_of(*(words if verb == "simulate" else ("search", *words[3:])))
    assert f"{record_path}: its texts have " in said
    assert "measured times differ too little by length" in said


def test_acceptance_may_be_assumed_in_a_file(schedule_path, profile_path, tmp_path):
    path = tmp_path / "acceptance.yaml"
    path.write_text("rates: 0.7\nexit_coverage: {15: [0.3, 0.4, 0.5, 0.6]}\ntexts: {num_texts: 2, num_tokens: 30}\n")
    words = ("simulate", "--schedule", schedule_path, "--profile", profile_path, "--acceptance", path)
    result = json_of(*words)
    assert result["source"].startswith(
        "assumed acceptance 0.7 at every position; exit coverage after layer 15: 0.3, 0.4"
    )
    assert [sum(row["accept_lengths"]) for row in result["prompts"]] == [30, 30]
    assert not any("token_ids" in row for row in result["prompts"])
    assert "Acceptance is assumed, not recorded" in call(*words).shown
    explained = call(*words, "--explain").shown
    assert explained.count("0.7 at every position") == 1
    assert "From assumed acceptance 0.7 at every position" in explained


def test_assumed_rates_do_not_answer_for_branches(schedule_path, profile_path):
    assert "exit_layer 15 are not assumed (`exit_coverage` of a YAML file)" in error_of(
        "simulate", "--schedule", schedule_path, "--profile", profile_path, "--acceptance", "0.7"
    )
