"""Simulating and searching refuse a record of other models; where it is asked for, results are labelled."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import mirrorsd
from decoding.errors import ConfigError, RecordError
from mirrorsd.simulation import require_same_models
from runtime.drafters.registry import SHIPPED_FOLDER
from sim.acceptance.replay import Replay
from tests.planner.synthetic import CHAINS, acceptance_record, machine, sampled_record

MACHINE = machine()
RECORD = acceptance_record(num_prompts=2, num_tokens=30)
OTHER = replace(RECORD, target="bigger")
SPACE = mirrorsd.SearchSpace(methods=("autoregressive", "speculative"), windows=(2, 3))
SCHEDULE = mirrorsd.Schedule(
    method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=3, drafter="four-layer"
)
LOOKUP = SCHEDULE.model_copy(update={"method": "prompt_lookup", "drafter": None})
LABEL = "Acceptance is replayed from another pair: it was recorded with target bigger"
CALLS = {
    "predict": lambda record, **more: mirrorsd.predict(SCHEDULE, MACHINE, record, **more),
    "simulate": lambda record, **more: mirrorsd.simulate(SCHEDULE, MACHINE, record, **more),
    "make_plan": lambda record, **more: mirrorsd.make_plan(SPACE, MACHINE, record, **more),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_record_of_other_models_is_refused(call):
    with pytest.raises(mirrorsd.MirrorsdError, match="was measured with target .*, but the record was recorded"):
        call(OTHER)
    for same in (False, True):
        assert require_same_models(machine(), RECORD, replayed=same) is None
    with pytest.raises(ConfigError, match="the profile was measured with"):
        mirrorsd.predict(SCHEDULE, MACHINE, Replay(OTHER))


@pytest.mark.parametrize("call", [*CALLS.values(), lambda record: mirrorsd.best_by_batch([SCHEDULE], MACHINE, record)])
def test_what_is_no_acceptance_is_refused(call):
    for wrong in (0.7, "record.npz"):
        with pytest.raises(ConfigError, match=f"acceptance is {wrong!r}: it is an AcceptanceRecord, or assumed"):
            call(wrong)


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ConfigError, match="there is no schedule"):
        mirrorsd.best_by_batch([], MACHINE, RECORD)
    with pytest.raises(ConfigError, match="there is no prompt"):
        mirrorsd.contexts_of([], max_new_tokens=8)
    assert mirrorsd.contexts_of(np.array([3, 5]), max_new_tokens=8) == (2, 13)


def test_a_schedule_that_names_no_head_takes_the_one_recorded_for_its_method():
    """So does a run: that of the models."""
    named = LOOKUP.model_copy(update={"drafter": "lookup"})
    profile, record = machine(), acceptance_record(num_prompts=2, chains=CHAINS)
    assert mirrorsd.predict(LOOKUP, profile, record).decode_s == mirrorsd.predict(named, profile, record).decode_s
    of_both = (mirrorsd.simulate(one, profile, record) for one in (LOOKUP, named))
    assert len({tuple(trace.decode_s for trace in traces) for traces in of_both}) == 1
    two = acceptance_record(num_prompts=2, chains=(*CHAINS, CHAINS[0].model_copy(update={"drafter": "another"})))
    with pytest.raises(RecordError, match="need the name of a drafter; windows it holds: .* of lookup; .* of another"):
        mirrorsd.predict(LOOKUP, profile, two)


def test_predictions_of_a_replayed_pair_are_labelled_and_else_the_same():
    plain, replayed = CALLS["predict"](RECORD), CALLS["predict"](OTHER, replayed=True)
    assert (replayed.tpot_s, replayed.num_rounds) == (plain.tpot_s, plain.num_rounds)
    assert replayed.source.startswith(LABEL)
    assert replayed.source.endswith(plain.source)
    assert CALLS["predict"](RECORD, replayed=True).source == plain.source


def test_a_search_with_a_replayed_pair_is_labelled_everywhere():
    plan, own = CALLS["make_plan"](OTHER, replayed=True), CALLS["make_plan"](RECORD)
    for one in plan.search.candidates:
        assert one.prediction.source.startswith(LABEL)
    assert [one.schedule for one in plan.search.candidates] == [one.schedule for one in own.search.candidates]
    assert LABEL in plan.verdict.text
    assert LABEL not in own.verdict.text


def test_a_search_with_a_replayed_pair_tells_what_its_times_leave_out_too():
    sampled = replace(sampled_record(0.75), target="bigger")
    drawing = "Times do not include sampling tokens at temperature 1"
    warnings = CALLS["make_plan"](sampled, replayed=True).verdict.warnings
    assert [one[: len(told)] for one, told in zip(warnings, (LABEL, drawing), strict=False)] == [LABEL, drawing]


@pytest.mark.parametrize(
    ("name", "other"), [("target", "bigger"), ("drafter", "better"), ("drafter", None), ("dtype", "float32")]
)
def test_each_difference_is_refused_with_both_sides_and_what_to_do(name, other):
    ours = getattr(machine(), name)
    message = (
        rf"^p\.yaml was measured with {name} {ours}, but r\.npz was recorded with {name} {other}\. "
        r"Calibrate and record with the same models, weights and device; .* --replayed-acceptance "
        r"\(in Python, replayed=True\)$"
    )
    with pytest.raises(ConfigError, match=message):
        require_same_models(machine(), replace(RECORD, **{name: other}), sides=("p.yaml", "r.npz"))


def test_what_is_asked_for_is_labelled_with_all_that_differs():
    other = replace(RECORD, target="bigger", dtype="float32")
    label = require_same_models(machine(), other, replayed=True)
    assert label == (
        "Acceptance is replayed from another pair: it was recorded with target bigger, dtype float32, "
        "but times are of target SmolLM2-135M-Instruct, dtype bfloat16."
    )


COMPILED = replace(RECORD, backend="openvino:CPU")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_record_of_another_back_end_is_refused_by_both_names(call):
    """Both are in bfloat16, and of the same models: in near ties they say something else."""
    message = "the profile was measured with back end torch, but the record was recorded with back end openvino:CPU"
    with pytest.raises(ConfigError, match=message):
        call(COMPILED)


def test_a_replay_of_another_numeric_form_is_labelled_as_that():
    label = "from another numeric form: it was recorded with back end openvino:CPU, but times are of "
    assert f"{label}back end torch." in CALLS["predict"](COMPILED, replayed=True).source
    assert label in CALLS["make_plan"](COMPILED, replayed=True).verdict.text
    both = require_same_models(machine(), replace(COMPILED, target="bigger"), replayed=True)
    recorded = "it was recorded with target bigger, back end openvino:"
    assert both.startswith(f"Acceptance is replayed from another pair: {recorded}")


def of_two_back_ends():
    """The lane `draft` computes by compiled graphs."""
    profile = machine()
    lanes = [one.model_copy(update={"device": "openvino:CPU"}) if one.name == "draft" else one for one in profile.lanes]
    return profile.model_copy(update={"lanes": tuple(lanes)})


def test_of_lanes_of_two_back_ends_those_are_searched_that_compute_as_was_recorded():
    expected = {
        "draft (openvino:CPU)": (RECORD, {"target", "both"}),
        "target (torch), both (torch)": (COMPILED, {"draft"}),
    }
    for said, (record, kept) in expected.items():
        plan = mirrorsd.make_plan(SPACE, of_two_back_ends(), record)
        for one in plan.search.candidates:
            assert {one.schedule.target_lane, one.schedule.draft_lane} <= kept | {None}
        assert {lane.name for lane in plan.profile.lanes} == kept
        assert said in plan.verdict.text
    everything = mirrorsd.make_plan(SPACE, of_two_back_ends(), RECORD, replayed=True).search.candidates
    assert ("target", "draft") in {(one.schedule.target_lane, one.schedule.draft_lane) for one in everything}
    assert everything[0].prediction.source.startswith("Acceptance is replayed from another numeric form: ")


def test_a_schedule_on_a_lane_that_computes_otherwise_is_refused():
    pooled = SCHEDULE.model_copy(update={"target_lane": "both", "draft_lane": "both"})
    for call in (mirrorsd.predict, mirrorsd.simulate):
        assert call(pooled, of_two_back_ends(), RECORD)
        with pytest.raises(ConfigError, match="with back end openvino:CPU, but the record was recorded with back end"):
            call(SCHEDULE, of_two_back_ends(), RECORD)


def timed_with(drafter):
    return MACHINE.model_copy(update={"drafter": drafter}), replace(RECORD, drafter=drafter)


def drafting_with(drafter):
    return SCHEDULE.model_copy(update={"drafter": drafter})


def test_a_schedule_of_another_draft_model_than_was_timed_is_refused():
    profile, record = timed_with("smollm2-135m-draft4")
    other, calls = drafting_with("Qwen3-0.6B"), (mirrorsd.predict, mirrorsd.simulate)
    for call, acceptance, replayed in product(calls, (record, mirrorsd.Bernoulli(0.7)), (False, True)):
        message = "measured with drafter smollm2-135m-draft4, but the schedule's drafter is Qwen3-0.6B: "
        with pytest.raises(ConfigError, match=message):
            call(other, profile, acceptance, replayed=replayed)
    replayed = mirrorsd.predict(other, profile, replace(record, drafter="Qwen3-0.6B"), replayed=True)
    assert replayed.tpot_s == mirrorsd.predict(SCHEDULE, MACHINE, RECORD).tpot_s
    assert mirrorsd.predict(drafting_with(None), profile, record).tpot_s == replayed.tpot_s


SHIPPED = str(SHIPPED_FOLDER / "smollm2-135m-draft4")


@pytest.mark.parametrize(
    "names",
    [
        ("smollm2-135m-draft4", SHIPPED),
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("/elsewhere/models/shape-llama-160m-609cea0123ab", "shape:llama-160m"),
        ("runs/small/drafter", "runs/small"),
        ("/elsewhere/smollm2-135m-draft4", SHIPPED),
    ],
)
def test_a_draft_model_goes_by_several_names(names):
    for timed, named in (names, names[::-1]):
        profile, record = timed_with(timed)
        schedule = drafting_with(named)
        assert require_same_models(profile, record, schedule=schedule) is None
        assert mirrorsd.simulate(schedule, profile, record)


def test_folders_of_one_name_are_two_draft_models_where_their_sizes_differ(tmp_path):
    config = json.loads((SHIPPED_FOLDER / "smollm2-135m-draft4" / "config.json").read_bytes())
    for name, hidden_size in (("one", 576), ("other", 1152)):
        (folder := tmp_path / name / "small" / "drafter").mkdir(parents=True)
        sized = config | {"target_shape": config["target_shape"] | {"hidden_size": hidden_size}}
        (folder / "config.json").write_text(json.dumps(sized))
    profile, record = timed_with(str(tmp_path / "one" / "small" / "drafter"))
    assert require_same_models(profile, record, schedule=drafting_with(str(tmp_path / "one" / "small"))) is None
    with pytest.raises(ConfigError, match="but the schedule's drafter is "):
        require_same_models(profile, record, schedule=drafting_with(str(tmp_path / "other" / "small")))
    told = require_same_models(profile, record, schedule=drafting_with(SHIPPED))
    assert "it is not known whether they differ" in told, "of the same sizes, and called otherwise"


def test_a_draft_model_that_nothing_tells_apart_is_taken_for_the_timed_one_and_said():
    told = "The schedule's drafter another is assumed to be four-layer: it is not known whether they differ."
    assert mirrorsd.predict(drafting_with("another"), MACHINE, RECORD).source.startswith(told)
    assert mirrorsd.predict(drafting_with("another"), MACHINE, mirrorsd.Bernoulli(0.7)).source.startswith(told)
    both = mirrorsd.predict(drafting_with("another"), MACHINE, OTHER, replayed=True).source
    assert both.startswith(LABEL)
    assert told in both


def test_a_folder_may_be_named_in_several_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = machine().model_copy(update={"target": "./models/llama"})
    assert require_same_models(profile, replace(RECORD, target="models/llama")) is None
    assert require_same_models(profile, replace(RECORD, target=str(tmp_path / "models" / "llama"))) is None


def test_assumed_acceptance_goes_wherever_a_record_goes():
    assumed = mirrorsd.Bernoulli(0.7)
    assert repr(CALLS["predict"](assumed)) == repr(CALLS["predict"](assumed.record))
    assert CALLS["predict"](assumed).source.startswith("assumed acceptance 0.7 at every position, drawn as 32 texts")
    assert len(CALLS["simulate"](assumed)) == 32
    plan = CALLS["make_plan"](assumed)
    assert plan.search.winner.schedule.method == "speculative"
    assert (
        "Acceptance is assumed, not recorded: 0.7 at every position. The prompts are drawn texts." in plan.verdict.text
    )
    assert [sweep.now for sweep in plan.sensitivity.sweeps] == [pytest.approx(0.7, abs=1e-3), 1.0]
