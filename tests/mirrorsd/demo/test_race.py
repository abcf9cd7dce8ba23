from math import inf

import pytest

from decoding.schedule import Schedule
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.runs import Measured
from mirrorsd.demo.demo_plan import FAIR_PROMPTS, WANTED_PROMPTS
from mirrorsd.demo.race import FurtherPrompts, Race
from planner.paired_ratio import Ratio
from planner.plan import make_plan
from planner.search.search import rank
from planner.search.space import SearchSpace
from tests.mirrorsd.clock import Clock
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import acceptance_record, machine, with_prefill

MACHINE = with_prefill(machine())
PLAIN = Schedule(method="autoregressive", target_lane="both")
DRAFTING = {
    count: Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=count)
    for count in (2, 5, 8)
}
NONE = FurtherPrompts(loading_s=1.0, record_s=1.0, num_prompts=0)
CUTS = [8] * WANTED_PROMPTS + [24] * 8
PACES = [1.0, 1.1, 0.95, 1.05, 1.0, 0.9, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def plan():
    space = SearchSpace(windows=(2, 5, 8), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())
    return make_plan(space, MACHINE, acceptance_record(num_prompts=len(CUTS), num_tokens=24))


def ran(plan, slower, num_prompts, paces=PACES):
    """Runs of the first prompts in which each schedule took so many times what was predicted, in the order given."""
    cuts = tuple(CUTS[:num_prompts])
    texts = Measured(runs=(((None,) * num_prompts),), cuts=cuts).texts(plan.record)
    made = (
        made_up_runs([schedule], plan.profile, texts, paces=paces, slower=factor).runs[0]
        for schedule, factor in slower.items()
    )
    return Measured(runs=tuple(made), cuts=cuts)


def race(plan, schedules, *, end_s=1e6, further=NONE):
    candidates = {one.schedule: one for one in rank(list(schedules), plan.profile, plan.record).candidates}
    clock = Clock()
    listed = [candidates[one] for one in schedules]
    return Race(listed, plan, CUTS, end_s=end_s, clock=clock, further=further), clock


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


@pytest.mark.parametrize("is_unsteady", [False, True])
def test_only_what_is_certainly_slower_is_left_out(plan, is_unsteady):
    """One is fast beyond its prediction, and another a tenth slower: always, or in the mean of very unlike prompts."""
    best = fastest_of(plan)
    fast, other = [one for one in DRAFTING.values() if one != best]
    tpot_s = {one.schedule: one.tpot_s for one in rank([fast, other], plan.profile, plan.record).candidates}
    slower = {PLAIN: 1.0, best: 1.0, fast: 0.3, other: 1.1 * 0.3 * tpot_s[fast] / tpot_s[other]}
    unlike = [1.6 if is_unsteady and place % 2 else 1 - 0.6 * is_unsteady for place in range(WANTED_PROMPTS)]
    steady = ran(plan, {one: factor for one, factor in slower.items() if one != other}, WANTED_PROMPTS)
    own = ran(
        plan, {other: slower[other]}, WANTED_PROMPTS, [one * more for one, more in zip(PACES, unlike, strict=False)]
    )
    runs = Measured(runs=(*steady.runs, *own.runs), cuts=steady.cuts)
    assert set(race(plan, slower)[0].going_on(runs)) == {PLAIN, best, fast} | ({other} if is_unsteady else set())


def test_a_schedule_loses_by_the_recorded_prompts_however_other_prompts_may_differ(plan):
    """One is 2 % slower than the best in all runs, which is less than what other prompts could change."""
    best = fastest_of(plan)
    other = next(one for one in DRAFTING.values() if one != best)
    tpot_s = {one.schedule: one.tpot_s for one in rank([best, other], plan.profile, plan.record).candidates}
    slower = {PLAIN: 1.0, best: 1.0, other: 1.02 * tpot_s[best] / tpot_s[other]}
    assert set(race(plan, slower)[0].going_on(ran(plan, slower, WANTED_PROMPTS))) == {PLAIN, best}


def test_one_whose_rounds_are_not_known_is_not_beaten_by_the_noise_of_two_runs(plan):
    """It is 7 % slower than the best, and had other rounds than simulated."""
    best = fastest_of(plan)
    other = next(one for one in DRAFTING.values() if one != best)
    tpot_s = {one.schedule: one.tpot_s for one in rank([best, other], plan.profile, plan.record).candidates}
    slower = {PLAIN: 1.0, best: 1.0, other: 1.07 * tpot_s[best] / tpot_s[other]}
    runs = ran(plan, slower, FAIR_PROMPTS)
    for run in runs.runs[2]:
        run.trace.rounds[-1] = run.trace.rounds[-1]._replace(outcome=(0, 1))
    assert set(race(plan, slower)[0].going_on(runs)) == set(slower)


def test_runs_end_where_one_of_the_answer_can_run_no_further_prompt(plan):
    """Its draft lane has no room for longer texts."""
    slower = {PLAIN: 1.0, fastest_of(plan): 1.0}
    runs = ran(plan, slower, WANTED_PROMPTS)
    stuck = Measured(runs=(runs.runs[0], runs.runs[1][:FAIR_PROMPTS]), cuts=runs.cuts)
    assert race(plan, slower)[0].going_on(runs) == list(slower)
    assert race(plan, slower)[0].going_on(stuck) == []


def test_a_prompt_is_begun_only_if_it_would_be_over_in_time_by_the_runs_so_far(plan):
    slower = {PLAIN: 1.0, fastest_of(plan): 1.0}
    runs = ran(plan, slower, 2)
    # After 20 s of warm-ups two prompts took 10 s; the next one, cut alike, takes about 5 s more.
    for end_s, is_begun in ((36.5, True), (33.5, False)):
        one, clock = race(plan, slower, end_s=end_s)
        clock.now_s = 20.0
        assert one.going_on(Measured(runs=((), ()))) == list(slower)
        clock.now_s = 30.0
        assert one.going_on(runs) == (list(slower) if is_begun else [])


def test_where_time_is_short_for_all_the_two_of_the_answer_run_another_prompt(plan):
    """One prompt of all shows no spread, so that there would be no interval."""
    best = fastest_of(plan)
    slower = {PLAIN: 1.0} | dict.fromkeys(DRAFTING.values(), 1.0)
    for end_s, expected in ((31.0, list(slower)), (29.0, [PLAIN, best]), (22.0, [])):
        one, clock = race(plan, slower, end_s=end_s)
        clock.now_s = 10.0
        one.going_on(Measured(runs=((),) * 4))
        clock.now_s = 20.0
        assert one.going_on(ran(plan, slower, 1)) == expected


@pytest.mark.parametrize(("record_s", "goes_on"), [(0.1, False), (1e3, True)])
def test_runs_end_where_recording_narrows_the_interval_more_for_its_time(plan, record_s, goes_on):
    slower = {PLAIN: 1.0, fastest_of(plan): 1.0}
    one, clock = race(plan, slower, end_s=60.0, further=FurtherPrompts(1.0, record_s, 1000))
    one.going_on(Measured(runs=((), ())))
    clock.now_s = 30.0
    assert bool(one.going_on(ran(plan, slower, WANTED_PROMPTS))) is goes_on


@pytest.mark.parametrize(
    ("machine_error", "prompts_error", "left_s", "pays"),
    [
        (0.09, 0.14, 60, False),  # two prompts run, 16 recorded: runs pay first
        (0.03, 0.14, 60, True),
        (0.03, 0.14, 9, False),  # loading alone takes nearly all
        (inf, 0.14, 60, False),  # one prompt run
        (0.0, 0.14, 60, True),
        (0.05, inf, 60, False),  # nothing can be narrowed
    ],
)
def test_time_goes_to_the_larger_error_by_what_each_costs(machine_error, prompts_error, left_s, pays):
    """Loading takes 8 s, a prompt 1.75 s to record and 8 s to run; 10 s of these two schedules are run."""
    further = FurtherPrompts(loading_s=8.0, record_s=1.75, num_prompts=140)
    ratio = Ratio(value=1.2, num_pairs=16, machine_error=machine_error, prompts_error=prompts_error)
    assert further.pay_more(ratio, 10.0, 8.0, left_s) is pays
    assert not further._replace(num_prompts=0).pay_more(ratio, 10.0, 8.0, left_s), "none is left"


def test_runs_of_fewer_prompts_are_judged_on_those_that_both_ran(plan):
    best = fastest_of(plan)
    other = next(one for one in DRAFTING.values() if one != best)
    slower = {PLAIN: 1.0, best: 1.0, other: 1.0}
    whole = ran(plan, slower, len(CUTS))
    short = Measured(runs=(*whole.runs[:2], whole.runs[2][:WANTED_PROMPTS]), cuts=whole.cuts)
    candidates = {one.schedule: one for one in rank(list(slower), plan.profile, plan.record).candidates}
    judged = judge_runs([candidates[one] for one in slower], short, plan.profile, plan.record)
    assert [len(result.measured) for result in judged.results] == [len(CUTS), len(CUTS), WANTED_PROMPTS]
    assert all(one.same_rounds for one in judged.comparisons)
    for result, paces in zip(judged.results, (PACES, PACES, PACES[:WANTED_PROMPTS]), strict=True):
        assert result.measured_s == pytest.approx(result.predicted_s, rel=0.12)
        assert len(result.simulated) == len(paces)
    plain = judged.results[0].measured[:WANTED_PROMPTS]
    own = judged.results[2].measured
    expected = sum(trace.decode_s for trace in plain) / sum(trace.decode_s for trace in own)
    assert judged.results[2].ratio.value == pytest.approx(expected)
    assert judged.results[2].plain_s == pytest.approx(sum(trace.decode_s for trace in plain) / (8 * WANTED_PROMPTS))
    lengths = judged.verdict.by_length
    assert list(lengths) == [24]
    assert lengths[24] == judged.verdict.speedup
