import json
from dataclasses import replace

import pytest

from decoding.metrics import tpot_s
from decoding.schedule import Schedule
from decoding.trace import LaneEvent
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.numbers import json_text, ratio_entry
from mirrorsd.compare.runs import Measured
from planner.plan import make_plan
from planner.search.search import rank
from sim.evaluator import Evaluator
from tests.mirrorsd.compare.made_up_runs import DRAFTING, PACES, PLAIN, SPACE, judged, made_up_runs
from tests.planner.synthetic import acceptance_record, machine

SLOW_PLAIN = Schedule(method="autoregressive", target_lane="target")


@pytest.fixture(scope="module")
def plan():
    return make_plan(SPACE, machine(), acceptance_record(num_prompts=4, num_tokens=24))


def test_ratios_are_those_of_the_tables_own_times_over_the_plain_one_predicted_fastest(plan):
    found = judged(plan, {SLOW_PLAIN: 0.1, PLAIN: 1.0, DRAFTING: 1.0})
    slow, plain, drafting = (result.ratio for result in found.results)
    assert plain.value == plain.low == plain.high == 1
    tpots_s = [tpot_s(result.measured) for result in found.results]
    assert drafting.value == pytest.approx(tpots_s[1] / tpots_s[2])
    assert slow.value == pytest.approx(tpots_s[1] / tpots_s[0]), "measured fastest, and no reference"
    assert drafting.low < drafting.value < drafting.high


def test_the_answer_is_that_of_the_runs_and_not_of_the_prediction(plan):
    as_predicted, slow_drafts = judged(plan, {PLAIN: 1.0, DRAFTING: 1.0}), judged(plan, {PLAIN: 1.0, DRAFTING: 3.0})
    assert (as_predicted.verdict.pays, slow_drafts.verdict.pays) == ("yes", "no")
    assert as_predicted.verdict.schedule == DRAFTING
    assert slow_drafts.verdict.schedule == PLAIN
    assert as_predicted.verdict.speedup.value == pytest.approx(3 * slow_drafts.verdict.speedup.value)


def test_without_plain_decoding_there_is_no_answer_for_a_page(plan):
    found = judged(plan, {DRAFTING: 1.0})
    assert (found.answer, found.results[0].ratio) == (None, None)
    assert ratio_entry(None) is None
    assert found.results[0].measured_at_anchor_s == pytest.approx(found.results[0].predicted_s)


def test_shorter_answers_have_a_ratio_of_their_own_at_the_same_cost_of_a_round():
    long = make_plan(SPACE, machine(), acceptance_record(num_prompts=4, num_tokens=70))
    found = judged(long, {PLAIN: 1.0, DRAFTING: 1.3})
    lengths = found.verdict.by_length
    assert list(lengths) == [32, 64, 70]
    assert lengths[70] == found.verdict.speedup
    simulated = {
        length: plain.decode_s / drafting.decode_s
        for length in lengths
        for evaluator in [Evaluator(machine(), long.record, max_new_tokens=length)]
        for plain, drafting in [map(evaluator.predict, [PLAIN, DRAFTING])]
    }
    assert lengths[32].value / lengths[70].value == pytest.approx(simulated[32] / simulated[70])
    assert simulated[32] != pytest.approx(simulated[70], rel=1e-3)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_run_that_left_its_rounds_or_lost_a_lane_does_not_tell_what_rounds_cost(plan, is_lost):
    """It ended early after half of its rounds, or took twice as long as the other lane was gone."""
    ranked = {one.schedule: one for one in rank([PLAIN, DRAFTING], plan.profile, plan.record).candidates}
    runs = made_up_runs([PLAIN, DRAFTING], plan.profile, plan.record, paces=PACES).runs
    last = runs[1][-1].trace
    half = len(last.rounds) // 2
    trace = replace(last, rounds=last.rounds[:half], decode_s=last.decode_s / 2)
    if is_lost:
        trace = replace(last, decode_s=2 * last.decode_s, events=[LaneEvent(0.0, "both", "gone")])
    disturbed = (runs[0], (*runs[1][:-1], replace(runs[1][-1], trace=trace)))
    found, expected = (
        judge_runs([ranked[PLAIN], ranked[DRAFTING]], Measured(runs=rows), plan.profile, plan.record).verdict
        for rows in (disturbed, runs)
    )
    assert found.speedup.on_these.value == pytest.approx(expected.speedup.on_these.value)
    assert found.speedup.on_these.high == pytest.approx(expected.speedup.on_these.high)


def test_one_prompt_cannot_tell(plan):
    found = judged(plan, {PLAIN: 1.0, DRAFTING: 1.0}, num_prompts=1)
    assert found.verdict.pays == "cannot_tell"
    assert found.verdict.speedup.value > 1
    entry = json.loads(json_text(ratio_entry(found.verdict.speedup)))
    assert (entry["low"], entry["high"]) == (None, None)
