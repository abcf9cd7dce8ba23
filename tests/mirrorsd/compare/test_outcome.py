"""What scripts are told of runs: the answer in both scopes, and what has changed on the machine since calibration."""

from dataclasses import replace
from math import exp
from types import SimpleNamespace

import pytest

from calibrate.compare_traces import Comparison, Divergence
from calibrate.profiling.anchors import RunAnchors
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Round
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Contention
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.numbers import measured_numbers, predicted_numbers
from mirrorsd.compare.outcome_entries import (
    accuracy,
    changed_slowdowns,
    changed_speed,
    is_unexplained,
    outcome_facts,
    rounds_in_words,
    schedule_entries,
    speedup_entry,
)
from mirrorsd.compare.runs import Measured
from planner.paired_ratio import Ratio
from planner.plan import make_plan
from planner.search.search import rank
from planner.search.space import SearchSpace
from sim.evaluator import predict
from sim.world import simulate
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import DRAFT_MIRROR, acceptance_record, machine

SPACE = SearchSpace(windows=(2, 3), uneven_roots=())
PLAIN = Schedule(method="autoregressive", target_lane="target")
PAIR = SimpleNamespace(target="t", drafter=None, exits=None, dtype="float32")


def sentences(then, *now):
    """Of runs whose anchors at once took so many times those alone, on a machine where that was `then` before."""
    record = acceptance_record(num_prompts=max(1, len(now)), num_tokens=20)
    entry = Contention(lanes=("target", "draft"), slowdown=(1.0, 1.0), anchor_slowdown=then, source="a test")
    profile = machine().model_copy(update={"contention": (entry,)})
    candidates = rank([PLAIN, DRAFT_MIRROR], profile, record).candidates
    plain, mirror = made_up_runs([PLAIN, DRAFT_MIRROR], profile, record).runs
    taken = [RunAnchors({"target": (2.0,), "draft": (3.0,)}, ((2.0 * one, 3.0 * other),)) for one, other in now]
    if taken:
        mirror = tuple(replace(run, anchors=own) for run, own in zip(mirror, taken, strict=True))
    rows = {PLAIN: plain, DRAFT_MIRROR: mirror}
    measured = Measured(runs=tuple(rows[candidate.schedule] for candidate in candidates))
    return list(changed_slowdowns(judge_runs(candidates, measured, profile, record), profile))


def test_a_change_is_said_with_both_numbers():
    (found,) = sentences((1.0, 1.1), (1.5, 1.6), (1.7, 1.6))
    slowed = "target and draft slowed each other by 1.60× and 1.60× during the runs, but by 1× and 1.10× during "
    assert found.startswith(slowed)


@pytest.mark.parametrize("now", [[(1.05, 1.15)], [(1.0, 1.0), (1.0, 1.3)], []])
def test_nothing_is_said_of_what_stayed_nearly_as_it_was_or_of_what_nobody_looked_at(now):
    assert sentences((1.0, 1.1), *now) == []


def test_nothing_is_said_where_calibration_did_not_look():
    assert sentences(None, (1.6, 1.6)) == []


def speed_sentences(*paces):
    """Of runs that took so many times what was predicted, and their anchors as many times those of the calibration."""
    record = acceptance_record(num_prompts=len(paces), num_tokens=20)
    candidates = rank([PLAIN, DRAFT_MIRROR], machine(), record).candidates
    measured = made_up_runs([one.schedule for one in candidates], machine(), record, paces=list(paces))
    return list(changed_speed(judge_runs(candidates, measured, machine(), record)))


def test_another_speed_of_the_machine_is_said_where_intervals_miss_for_it():
    (found,) = speed_sentences(0.5, 0.5, 0.5)
    assert found.startswith("During the runs this machine had 2× its speed just before them")
    assert "Outside their intervals: 2 of 2 measured times." in found
    (found,) = speed_sentences(2.0, 2.0)
    assert found.startswith("During the runs this machine had 0.50× its speed")


@pytest.mark.parametrize("pace", [1.0, 0.97, 1.05])
def test_nothing_is_said_of_a_machine_that_kept_its_speed(pace):
    assert speed_sentences(pace, pace) == []


def test_the_ratio_is_told_of_these_prompts_and_of_those_like_them():
    ratio = Ratio(value=1.2, num_pairs=40, prompts_error=0.1, machine_error=0.02)
    entry = speedup_entry(ratio)
    assert entry == {
        "value": 1.2,
        "low": ratio.low,
        "high": ratio.high,
        "scope": {
            "these_prompts": {"value": 1.2, "low": ratio.on_these.low, "high": ratio.on_these.high},
            "like_these": {"value": 1.2, "low": ratio.low, "high": ratio.high},
        },
    }
    assert entry["low"] < entry["scope"]["these_prompts"]["low"] == pytest.approx(1.2 / exp(0.02))
    assert speedup_entry(None) is None


def test_a_schedule_is_set_beside_plain_decoding_of_the_texts_that_it_ran_itself():
    record = acceptance_record(num_prompts=4, num_tokens=20)
    plan = make_plan(SPACE, machine(), record)
    candidates = rank([PLAIN, DRAFT_MIRROR], machine(), record).candidates
    rows = made_up_runs([one.schedule for one in candidates], machine(), record, paces=[1.0, 1.0, 2.0, 2.0]).runs
    drafts = [one.schedule.draft_lane is not None for one in candidates]
    runs = tuple(row[:2] if is_drafting else row for row, is_drafting in zip(rows, drafts, strict=True))
    judged = judge_runs(candidates, Measured(runs=runs), plan.profile, plan.record)
    entries = schedule_entries(judged)
    assert [entry["num_prompts"] for entry in entries] == [2 if is_drafting else 4 for is_drafting in drafts]
    for entry in entries:
        assert entry["speedup_measured"]["value"] == pytest.approx(entry["plain_tpot_s"] / entry["measured"]["tpot_s"])
    drafting, plain = entries[drafts.index(True)], entries[drafts.index(False)]
    assert plain["plain_tpot_s"] == plain["measured"]["tpot_s"]
    assert drafting["plain_tpot_s"] < plain["plain_tpot_s"], "it ran the prompts of the fast half alone"
    assert {entry["plain"] for entry in entries} == {plain["name"]}
    facts = outcome_facts(judged, plan, PAIR, used=None)
    told = facts["speedup"]
    assert (told["of"], told["over"], told["num_prompts"]) == (drafting["name"], plain["name"], 2)
    assert facts["winner"] == judged.verdict.recommended
    assert (facts["num_prompts"], facts["num_recorded_prompts"]) == (4, 4)
    assert facts["coverage"] == sum(one.is_held for one in judged.results) / 2


def test_runs_without_plain_decoding_have_neither_a_baseline_nor_a_ratio_nor_a_winner():
    record = acceptance_record(num_prompts=2, num_tokens=20)
    plan = make_plan(SPACE, machine(), record)
    candidates = rank([DRAFT_MIRROR], machine(), record).candidates
    judged = judge_runs(candidates, made_up_runs([DRAFT_MIRROR], machine(), record), plan.profile, plan.record)
    assert [entry["plain"] for entry in schedule_entries(judged)] == [None]
    facts = outcome_facts(judged, plan, PAIR, used=None)
    assert (facts["speedup"], facts["winner"]) == (None, None)


def test_a_run_that_was_stopped_has_lost_no_lane():
    profile, record = machine(), acceptance_record(num_prompts=2, num_tokens=20)
    candidates = rank([PLAIN, DRAFT_MIRROR], profile, record).candidates
    measured = made_up_runs([one.schedule for one in candidates], profile, record)
    stopped, lost = measured.runs[0][0].trace, measured.runs[1][0].trace
    stopped.events.append(LaneEvent(0.1, "target", "mirrorsd stood still for 12.0 s", is_loss=False))
    lost.events.append(LaneEvent(0.1, "draft", "it hung"))
    entries = schedule_entries(judge_runs(candidates, measured, profile, record))
    assert [len(entry["events"]) for entry in entries] == [1, 1]
    assert [entry["lost_lane"] for entry in entries] == [False, True]


def test_accuracy_sums_schedules_up_by_absolute_error():
    errors = {"a": (0.01, 0.5), "b": (-0.1, 0.0), "c": (0.02, -0.1)}
    judged = SimpleNamespace(
        names=[*errors],
        results=[SimpleNamespace(error=one, error_at_anchor=other) for one, other in errors.values()],
        comparisons=[compared("a"), compared("b"), compared("c")],
    )
    assert accuracy(judged) == {
        "median_error": 0.02,
        "worst_error": 0.1,
        "median_error_at_anchor": 0.1,
        "worst_error_at_anchor": 0.5,
        "worst_schedule": "b",
        "same_rounds": True,
    }


SIMULATED, MEASURED = Round(0, 1, 2, 1, 2, (1, 7), None), Round(0, 1, 2, 0, 1, (0, 9), True)
ALARM = "This should not happen"


def compared(name, *divergences, is_tree=False, num_prompts=4):
    return Comparison(
        schedule=name,
        num_prompts=num_prompts,
        divergences=divergences,
        at_anchor_s=(1.0,) * num_prompts,
        is_tree=is_tree,
    )


def divergence(by="target", margin=0.0625):
    return Divergence(prompt="p1", round=2, position=5, simulated=SIMULATED, measured=MEASURED, by=by, margin=margin)


def test_rounds_that_are_the_same_everywhere():
    expected = "All 8 texts had exactly the simulated rounds."
    assert rounds_in_words([compared("a"), compared("b", is_tree=True)], "bfloat16", is_row_invariant=True) == expected


def test_a_near_tie_of_the_target_is_explained():
    text = rounds_in_words([compared("a"), compared("b", divergence())], "bfloat16")
    assert text == (
        "1 of 8 texts with chains had other rounds than simulated. First: b, prompt p1, round 3, after 5 new tokens: "
        "predicted 1 of 2 accepted, then token 7, measured 0 of 2 accepted, then token 9 (hit). The target's two best "
        "logits are 0.062 apart there: in bfloat16, rounding may swap them when other rows are in the pass."
    )


def test_what_is_far_apart_or_exact_is_not_explained_by_rounding():
    for dtype, margin in (("bfloat16", 1.375), ("float32", 0.0625)):
        text = rounds_in_words([compared("b", divergence(margin=margin))], dtype)
        assert text.endswith(f"two best logits are {margin:.3f} apart there.")


@pytest.mark.parametrize("by", ["draft", "lost lane"])
def test_the_targets_margin_is_not_blamed_where_another_decided(by):
    chain = compared("b", divergence(by=by, margin=None))
    text = rounds_in_words([chain], "bfloat16", is_row_invariant=by == "lost lane")
    assert text.endswith(f" The {by} caused it.")
    assert is_unexplained(chain) == (by == "draft")


def test_a_chain_that_leaves_the_rounds_where_rows_are_invariant_is_an_alarm():
    chain = compared("b", divergence())
    for known, expected in ((True, True), (False, False), (None, False)):
        assert (ALARM in rounds_in_words([chain], "bfloat16", is_row_invariant=known)) == expected
    assert is_unexplained(chain)


def test_trees_are_counted_apart_with_their_reason_and_are_no_alarm():
    tree = compared("c", divergence(), divergence(), is_tree=True, num_prompts=6)
    text = rounds_in_words([compared("a"), tree], "bfloat16", is_row_invariant=True)
    assert text.startswith("0 of 4 texts with chains had other rounds than simulated. 2 of 6 texts with trees had ")
    assert text.endswith("apart there: in bfloat16, rounding may swap them when other rows are in the pass.")
    assert ALARM not in text
    assert not is_unexplained(tree)


TIMES = ("prefill_s", "ttft_s", "e2e_s")


READING = LatencyTable(rows=(1, 1000), contexts=(0,), seconds=((0.1,), (2.0,)), source="made up")


@pytest.fixture
def both():
    """Predicted, and of simulated traces."""
    lanes = [lane.model_copy(update={"prefill": READING, "draft_prefill": READING}) for lane in machine().lanes]
    profile = machine().model_copy(update={"lanes": tuple(lanes)})
    record = acceptance_record(num_prompts=3, num_tokens=24)
    predicted = predicted_numbers(predict(DRAFT_MIRROR, profile, record))
    return predicted, simulate(DRAFT_MIRROR, profile, record)


def test_the_prediction_has_an_interval_and_else_the_same_numbers(both):
    predicted, traces = both
    measured = measured_numbers(traces)
    assert predicted.keys() - measured.keys() == {"tpot_s_low", "tpot_s_high"}
    assert measured == pytest.approx({name: predicted[name] for name in measured})


def test_a_request_begins_with_its_prompt(both):
    _, traces = both
    measured, count = measured_numbers(traces), len(traces)
    assert 0 < measured["prefill_s"] / count < measured["ttft_s"] < measured["e2e_s"]
    assert measured["e2e_s"] == pytest.approx((measured["prefill_s"] + measured["decode_s"]) / count)


def test_where_one_prefill_is_not_known_nothing_is_said_of_requests(both):
    _, traces = both
    traces[0].prefill_s = None
    assert [measured_numbers(traces)[name] for name in TIMES] == [None, None, None]
