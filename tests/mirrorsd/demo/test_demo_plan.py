import pytest

from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.schedule import Schedule
from mirrorsd.demo.demo_plan import (
    ENOUGH_PROMPTS,
    NUM_SCHEDULES,
    NUM_TREES,
    PromptCost,
    enough_s,
    expected_runs_s,
    most_important,
    prompt_cost,
    recording_s,
    run_s,
    text_length,
    what_fits,
)
from planner.search.search import rank
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
    """Ten of a second: warmed up, two prompts of all and two of half of them."""
    assert expected_runs_s([1.0] * 10) == 10 + 2 * 10 + 2 * 5


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
