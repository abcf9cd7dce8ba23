"""Schedules that have lost are left out of further prompts, and nothing is begun that would end too late."""

import pytest

from decoding.schedule import Schedule
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.runs import Measured
from mirrorsd.demo.demo_plan import FAIR_PROMPTS, WANTED_PROMPTS
from mirrorsd.demo.race import Race
from planner.plan import make_plan
from planner.search.search import rank
from planner.search.space import SearchSpace
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import acceptance_record, machine

PLAIN = Schedule(method="autoregressive", target_lane="both")
DRAFTING = {
    count: Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=count)
    for count in (2, 3, 4)
}
CUTS = [8] * WANTED_PROMPTS + [24] * 8
PACES = [1.0, 1.1, 0.95, 1.05, 1.0, 0.9, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0]


class Clock:
    """Stands still between what is set."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture(scope="module")
def plan():
    space = SearchSpace(windows=(2, 3, 4), uneven_roots=())
    return make_plan(space, machine(), acceptance_record(num_prompts=len(CUTS), num_tokens=24))


def ran(plan, slower, num_prompts):
    """Runs of the first prompts in which each schedule took so many times what was predicted, in the order given."""
    cuts = tuple(CUTS[:num_prompts])
    texts = Measured(runs=(((None,) * num_prompts),), cuts=cuts).texts(plan.record)
    made = (
        made_up_runs([schedule], plan.profile, texts, paces=PACES, slower=factor).runs[0]
        for schedule, factor in slower.items()
    )
    return Measured(runs=tuple(made), cuts=cuts)


def race(plan, schedules, *, end_s=1e6):
    candidates = {one.schedule: one for one in rank(list(schedules), plan.profile, plan.record).candidates}
    clock = Clock()
    return Race([candidates[one] for one in schedules], plan, CUTS, end_s=end_s, clock=clock), clock


def fastest_of(plan):
    return min(rank(list(DRAFTING.values()), plan.profile, plan.record).candidates, key=lambda one: one.tpot_s).schedule


def test_what_is_slower_than_another_on_these_prompts_is_left_out_but_the_two_of_the_answer_stay(plan):
    best = fastest_of(plan)
    slower = {PLAIN: 3.0} | {one: 1.0 if one == best else 2.0 for one in DRAFTING.values()}
    runs, (one, clock) = ran(plan, slower, WANTED_PROMPTS), race(plan, slower)
    clock.now_s = 10.0
    assert set(one.going_on(runs)) == {PLAIN, best}
    assert set(one.going_on(ran(plan, slower, FAIR_PROMPTS))) == {PLAIN, best}
    few = ran(plan, slower, FAIR_PROMPTS - 1)
    assert one.going_on(few) == list(slower), "one run decides nothing"


def test_what_cannot_be_told_apart_goes_on(plan):
    slower = dict.fromkeys([PLAIN, *DRAFTING.values()], 1.0)
    one, _ = race(plan, slower)
    first, second = list(DRAFTING.values())[:2]
    runs = ran(plan, slower | {first: 1.0, second: 1.0}, WANTED_PROMPTS)
    going_on = one.going_on(runs)
    assert PLAIN in going_on
    assert fastest_of(plan) in going_on


def test_a_prompt_is_begun_only_if_it_would_be_over_in_time_by_the_runs_so_far(plan):
    slower = {PLAIN: 1.0, fastest_of(plan): 1.0}
    runs = ran(plan, slower, 2)
    # Two prompts took 10 s; the next one, cut alike, takes about 5 s more.
    for end_s, is_begun in ((16.5, True), (13.5, False)):
        one, clock = race(plan, slower, end_s=end_s)
        clock.now_s = 10.0
        assert one.going_on(runs) == (list(slower) if is_begun else [])


def test_runs_of_fewer_prompts_are_judged_on_those_that_both_ran(plan):
    best = fastest_of(plan)
    other = next(one for one in DRAFTING.values() if one != best)
    slower = {PLAIN: 1.0, best: 1.0, other: 1.0}
    whole = ran(plan, slower, len(CUTS))
    short = Measured(runs=(*whole.runs[:2], whole.runs[2][:WANTED_PROMPTS]), cuts=whole.cuts)
    candidates = {one.schedule: one for one in rank(list(slower), plan.profile, plan.record).candidates}
    judged = judge_runs([candidates[one] for one in slower], short, plan)
    assert [len(result.measured) for result in judged.results] == [len(CUTS), len(CUTS), WANTED_PROMPTS]
    assert all(one.same_rounds for one in judged.comparisons)
    for result, paces in zip(judged.results, (PACES, PACES, PACES[:WANTED_PROMPTS]), strict=True):
        assert result.measured_s == pytest.approx(result.predicted_s, rel=0.12)
        assert len(result.simulated) == len(paces)
    plain = judged.results[0].measured[:WANTED_PROMPTS]
    own = judged.results[2].measured
    expected = sum(trace.decode_s for trace in plain) / sum(trace.decode_s for trace in own)
    assert judged.ratios[2].value == pytest.approx(expected)
    assert judged.results[2].plain_s == pytest.approx(sum(trace.decode_s for trace in plain) / (8 * WANTED_PROMPTS))
    lengths = judged.verdict.by_length
    assert list(lengths) == [24]
    assert lengths[24] == judged.verdict.speedup
