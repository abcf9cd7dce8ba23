import pytest

from calibrate.prompts import Prompt
from mirrorsd.demo.demo_plan import NUM_SCHEDULES, NUM_TREES, PromptCost, num_prompts_that_fit, prompt_cost, take_turns
from planner.what_if.scaled_profile import with_speed
from tests.planner.synthetic import machine


def prompt(name, category):
    return Prompt(prompt_id=name, category=category, turns=("text",))


def test_kinds_of_task_take_turns():
    prompts = [prompt("a1", "a"), prompt("a2", "a"), prompt("a3", "a"), prompt("b1", "b"), prompt("b2", "b")]
    assert [one.prompt_id for one in take_turns(prompts)] == ["a1", "b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(("left_s", "count"), [(-5, 1), (0, 1), (9, 1), (29, 2), (30, 3), (1000, 12)])
def test_as_many_prompts_as_fit_but_at_least_one(left_s, count):
    assert num_prompts_that_fit(PromptCost(record_s=2, run_s=8), left_s, 12) == count


def test_running_costs_at_least_plain_decoding_on_one_core_for_every_schedule():
    cost = prompt_cost(machine(), prompt_length=50, max_new_tokens=40, max_window=8)
    one_core = machine().lane("target")
    token_s = 30 * one_core.layer.seconds[0][0] + one_core.lm_head.seconds[0][0]
    assert cost.run_s > NUM_SCHEDULES * 40 * token_s
    assert cost.record_s < cost.run_s


def test_a_slower_target_makes_every_prompt_dearer():
    sizes = {"prompt_length": 50, "max_new_tokens": 40, "max_window": 8}
    now, slow = prompt_cost(machine(), **sizes), prompt_cost(with_speed(machine(), "target", 0.5), **sizes)
    assert slow.run_s > 1.9 * now.run_s
    assert slow.record_s > now.record_s


def test_heads_are_recorded_and_their_trees_are_run():
    sizes = {"prompt_length": 50, "max_new_tokens": 40, "max_window": 8}
    plain = machine().model_copy(
        update={"lanes": tuple(lane.model_copy(update={"heads": {}, "streams": {}}) for lane in machine().lanes)}
    )
    without, with_heads = prompt_cost(plain, **sizes), prompt_cost(machine(), **sizes)
    assert with_heads.run_s == pytest.approx(without.run_s * (NUM_SCHEDULES + NUM_TREES) / NUM_SCHEDULES)
    assert with_heads.record_s == without.record_s
    one = prompt_cost(machine(), **sizes, growing=["eagle"], num_tree_steps=10).record_s - without.record_s
    both = prompt_cost(machine(), **sizes, growing=["eagle", "eagle-3"], num_tree_steps=20).record_s - without.record_s
    assert both == pytest.approx(4 * one)
    assert one > 0


def test_longer_texts_and_prompts_are_dearer():
    def cost(length, num_tokens):
        return prompt_cost(machine(), prompt_length=length, max_new_tokens=num_tokens, max_window=8)

    assert cost(50, 40).run_s < cost(100, 40).run_s < cost(100, 80).run_s
    assert cost(50, 40).record_s < cost(100, 40).record_s < cost(100, 80).record_s
