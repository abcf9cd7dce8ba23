import pytest

from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.schedule import Schedule
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.runs import Measured
from mirrorsd.demo.demo_plan import (
    ENOUGH_PROMPTS,
    FAIR_PROMPTS,
    NUM_SCHEDULES,
    NUM_TREES,
    WANTED_PROMPTS,
    PromptCost,
    Race,
    enough_s,
    more_s,
    most_important,
    prompt_cost,
    recording_s,
    run_s,
    text_length,
    what_fits,
)
from planner.plan import make_plan
from planner.search.search import rank
from planner.search.space import SearchSpace
from tests.mirrorsd.clock import Clock
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import PREFILL, acceptance_record, machine, with_prefill

MACHINE = with_prefill(machine())


@pytest.mark.parametrize(("left_s", "expected"), [(100, 65), (44, 17.6), (50, 20), (0, 0), (64, 29)])
def test_recording_gets_what_runs_do_not_need_and_two_fifths_at_least(left_s, expected):
    """Runs need 4 prompts of all 8 schedules, a second each, and 3 of whole texts."""
    cost = PromptCost(record_s=2, short_run_s=1, run_s=1, num_schedules=8)
    assert recording_s(cost, left_s) == pytest.approx(expected)


@pytest.mark.parametrize("run_s", [0.1, 1.0, 5.0])
def test_in_enough_time_enough_prompts_are_recorded_and_not_in_less(run_s):
    cost = PromptCost(record_s=2, short_run_s=run_s, run_s=run_s, num_schedules=8)
    assert recording_s(cost, enough_s(cost)) == pytest.approx(ENOUGH_PROMPTS * cost.record_s)
    assert recording_s(cost, 0.99 * enough_s(cost)) < ENOUGH_PROMPTS * cost.record_s


@pytest.mark.parametrize(("left_s", "expected"), [(9999, 256), (310, 256), (300, 128), (150, 64), (70, 32), (-1, 32)])
def test_rather_shorter_texts_are_recorded_than_fewer_than_twelve_prompts(left_s, expected):
    """A token costs 0.1 s to record, and runs nearly nothing: all that is left is for recording."""

    def cost_of(length):
        return PromptCost(record_s=0.1 * length, short_run_s=0.01, run_s=0.01, num_schedules=8)

    length, cost = text_length(cost_of, 256, left_s)
    assert (length, cost) == (expected, cost_of(expected))
    assert text_length(cost_of, 20, -1)[0] == 20, "shorter texts were asked for"


def test_running_costs_at_least_plain_decoding_on_one_core_for_every_schedule():
    cost = prompt_cost(MACHINE, prompt_length=50, max_new_tokens=40, max_window=8)
    one_core = MACHINE.lane("target")
    token_s = 30 * one_core.layer.seconds[0][0] + one_core.lm_head.seconds[0][0]
    assert cost.run_s == cost.short_run_s > 40 * token_s, "texts are no longer than what all run"
    assert cost.record_s < cost.num_schedules * cost.run_s


def test_prompts_cost_what_the_profile_says_of_reading_them():
    short, long = (prompt_cost(MACHINE, prompt_length=length, max_new_tokens=40, max_window=8) for length in (17, 117))
    assert long.run_s - short.run_s == pytest.approx(PREFILL.at(116, 0) - PREFILL.at(16, 0))


def test_heads_are_recorded_and_their_trees_are_run():
    sizes = {"prompt_length": 50, "max_new_tokens": 40, "max_window": 8}
    plain = MACHINE.model_copy(
        update={"lanes": tuple(lane.model_copy(update={"heads": {}, "streams": {}}) for lane in MACHINE.lanes)}
    )
    without, with_heads = prompt_cost(plain, **sizes), prompt_cost(MACHINE, **sizes)
    assert (without.num_schedules, with_heads.num_schedules) == (NUM_SCHEDULES, NUM_SCHEDULES + NUM_TREES)
    assert with_heads.run_s == without.run_s
    assert with_heads.record_s == without.record_s
    one = prompt_cost(MACHINE, **sizes, growing=["eagle"], num_tree_steps=10).record_s - without.record_s
    both = prompt_cost(MACHINE, **sizes, growing=["eagle", "eagle-3"], num_tree_steps=20).record_s - without.record_s
    assert both == pytest.approx(4 * one)
    assert one > 0


def candidates(*schedules):
    return {
        one.schedule: one
        for one in rank(schedules, MACHINE, acceptance_record(num_prompts=3, num_tokens=24)).candidates
    }


PLAIN = Schedule(method="autoregressive", target_lane="both")
SLOW_PLAIN = Schedule(method="autoregressive", target_lane="target")
DRAFTING = {
    count: Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=count)
    for count in (2, 5, 8)
}


def test_half_of_the_schedules_are_taken_to_lose_early():
    """Ten of a second: warmed up, two prompts of all and two of half of them; and three whole texts."""
    runs_s = 10 + 2 * 10 + 2 * 5 + 3 * 2
    assert more_s([1.0] * 10, 2.0, 100.0) == 100 - runs_s
    assert more_s([1.0] * 10, 2.0, 50.0) == 50 / 2, "half at least"


def test_what_decides_the_answer_comes_first():
    picked = [SLOW_PLAIN, DRAFTING[8], DRAFTING[5], DRAFTING[2], PLAIN]
    found = candidates(*picked)
    order = [one.schedule for one in most_important([found[schedule] for schedule in picked], found[DRAFTING[8]])]
    fastest = min(DRAFTING.values(), key=lambda schedule: found[schedule].tpot_s)
    first = list(dict.fromkeys([PLAIN, DRAFTING[8], fastest]))
    assert order[: len(first)] == first
    assert order[len(first) :] == [schedule for schedule in picked if schedule not in first]


def test_a_run_costs_what_is_predicted_and_its_anchors():
    (prompt,) = acceptance_record(num_prompts=1, num_tokens=24).prompts
    found = candidates(PLAIN, SLOW_PLAIN)
    fast, slow = (run_s(found[schedule], MACHINE, prompt, 24) for schedule in (PLAIN, SLOW_PLAIN))
    decode_s = [24 * found[schedule].tpot_s for schedule in (PLAIN, SLOW_PLAIN)]
    assert slow - fast == pytest.approx(4 / 3 * (decode_s[1] - decode_s[0])), "a quarter of the time for anchors"
    around_s = fast - 4 / 3 * decode_s[0]
    assert around_s > 4 * pass_s(cost_of(MACHINE.lane("target")), 30, 1, 0), "4 plain steps, and prompts"
    assert run_s(found[PLAIN], MACHINE, prompt, 12) - around_s == pytest.approx(4 / 3 * decode_s[0] / 2), "cut"
    assert run_s(found[PLAIN], MACHINE, prompt, 99) == fast, "a text that ends before"


@pytest.mark.parametrize(("left_s", "expected"), [(300, 10), (50, 10), (49, 9), (41, 8), (25, 5), (20, 4), (-5, 4)])
def test_rather_fewer_schedules_than_fewer_than_four_prompts(left_s, expected):
    """Ten schedules of a second a prompt, and a second each to warm up."""
    assert what_fits([1.0] * 10, left_s, 4) == expected
    assert what_fits([1.0, 1.0], 3, 4) == 2, "where there are only two"


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
