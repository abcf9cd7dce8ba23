import pytest

from decoding.schedule import Schedule
from mirrorsd.demo.demo_plan import (
    NUM_SCHEDULES,
    NUM_TREES,
    PromptCost,
    most_telling,
    num_prompts_that_fit,
    prompt_cost,
    run_costs,
    what_fits,
)
from planner.search.search import rank
from planner.what_if.scaled_profile import with_speed
from tests.planner.synthetic import acceptance_record, machine


@pytest.mark.parametrize(
    ("left_s", "count"), [(-5, 1), (0, 1), (9, 1), (29, 4), (36, 6), (59, 9), (70, 11), (90, 12), (1000, 14)]
)
def test_as_many_prompts_are_recorded_as_fit_but_twelve_where_fewer_schedules_do_and_at_least_one(left_s, count):
    """A prompt takes 10 s with all eight schedules, and 6 s with four."""
    assert num_prompts_that_fit(PromptCost(record_s=2, run_s=1, num_schedules=8), left_s, 14) == count


def test_running_costs_at_least_plain_decoding_on_one_core_for_every_schedule():
    cost = prompt_cost(machine(), prompt_length=50, max_new_tokens=40, max_window=8)
    one_core = machine().lane("target")
    token_s = 30 * one_core.layer.seconds[0][0] + one_core.lm_head.seconds[0][0]
    assert cost.run_s > 40 * token_s
    assert cost.record_s < cost.num_schedules * cost.run_s


def test_a_slower_target_makes_every_prompt_dearer():
    sizes = {"prompt_length": 50, "max_new_tokens": 40, "max_window": 8}
    now, slow = prompt_cost(machine(), **sizes), prompt_cost(with_speed(machine(), "target", 0.5), **sizes)
    assert slow.run_s > 1.9 * now.run_s
    assert slow.record_s > now.record_s
    for longer in ({"prompt_length": 100}, {"max_new_tokens": 80}):
        dearer = prompt_cost(machine(), **sizes | longer)
        assert dearer.run_s > now.run_s
        assert dearer.record_s > now.record_s


def test_heads_are_recorded_and_their_trees_are_run():
    sizes = {"prompt_length": 50, "max_new_tokens": 40, "max_window": 8}
    plain = machine().model_copy(
        update={"lanes": tuple(lane.model_copy(update={"heads": {}, "streams": {}}) for lane in machine().lanes)}
    )
    without, with_heads = prompt_cost(plain, **sizes), prompt_cost(machine(), **sizes)
    assert (without.num_schedules, with_heads.num_schedules) == (NUM_SCHEDULES, NUM_SCHEDULES + NUM_TREES)
    assert with_heads.run_s == without.run_s
    assert with_heads.record_s == without.record_s
    one = prompt_cost(machine(), **sizes, growing=["eagle"], num_tree_steps=10).record_s - without.record_s
    both = prompt_cost(machine(), **sizes, growing=["eagle", "eagle-3"], num_tree_steps=20).record_s - without.record_s
    assert both == pytest.approx(4 * one)
    assert one > 0


def candidates(*schedules):
    return {
        one.schedule: one
        for one in rank(schedules, machine(), acceptance_record(num_prompts=3, num_tokens=24)).candidates
    }


PLAIN = Schedule(method="autoregressive", target_lane="both")
SLOW_PLAIN = Schedule(method="autoregressive", target_lane="target")
DRAFTING = {
    count: Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=count)
    for count in (2, 5, 8)
}


def test_what_decides_the_answer_comes_first():
    picked = [SLOW_PLAIN, DRAFTING[8], DRAFTING[5], DRAFTING[2], PLAIN]
    found = candidates(*picked)
    order = [one.schedule for one in most_telling([found[schedule] for schedule in picked], found[DRAFTING[8]])]
    fastest = min(DRAFTING.values(), key=lambda schedule: found[schedule].tpot_s)
    first = list(dict.fromkeys([PLAIN, DRAFTING[8], fastest]))
    assert order[: len(first)] == first
    assert order[len(first) :] == [schedule for schedule in picked if schedule not in first]


def test_a_run_costs_what_is_predicted_and_its_anchors():
    record = acceptance_record(num_prompts=3, num_tokens=24)
    found = candidates(PLAIN, SLOW_PLAIN)
    fast, slow = run_costs([found[PLAIN], found[SLOW_PLAIN]], machine(), record)
    decode_s = [found[schedule].prediction.decode_s / 3 for schedule in (PLAIN, SLOW_PLAIN)]
    assert slow - fast == pytest.approx(4 / 3 * (decode_s[1] - decode_s[0])), "a quarter of the time for anchors"
    around_s = fast - 4 / 3 * decode_s[0]
    assert around_s > 4 * machine().lane("target").verify_s(30, 1, 0), "4 plain steps, and prompts"


@pytest.mark.parametrize(
    ("left_s", "available", "expected"),
    [
        (300, 12, (10, 12)),
        (75, 12, (7, 9)),
        (60, 12, (6, 9)),
        (30, 12, (4, 6)),
        (20, 12, (4, 4)),
        (1, 12, (4, 1)),
        (-5, 12, (4, 1)),
        (45, 3, (10, 3)),
    ],
)
def test_rather_fewer_schedules_than_fewer_than_nine_prompts(left_s, available, expected):
    """Ten schedules of a second a prompt, and a second each to warm up."""
    assert what_fits([1.0] * 10, left_s, available) == expected
    assert what_fits([1.0, 1.0], 3, 12) == (2, 1), "where there are only two"
