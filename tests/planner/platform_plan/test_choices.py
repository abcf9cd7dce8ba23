import pytest

from decoding.errors import PlanError
from hwprofiles.model_shape import model_shape
from hwprofiles.models.head_shapes import HEADS, head_shape
from mirrorsd.pair_on_platform import plan_pair
from planner.platform_plan.choices import choose_draft, choose_machine
from sim.acceptance.assumed import Bernoulli

TARGET = "qwen3-8b"


def planned(draft, **settings):
    return plan_pair(TARGET, draft, "rtx4090", lengths=(64, 32), **settings)


@pytest.fixture(scope="module")
def choices():
    return choose_draft([(draft, planned(draft)) for draft in ("qwen3-1.7b", "qwen3-0.6b")])


def test_the_fastest_comes_first_and_needs_nothing(choices):
    assert [one.name for one in choices] == ["qwen3-0.6b", "qwen3-1.7b"]
    assert choices[0].acceptance_to_lead is None


def test_with_the_acceptance_that_it_needs_a_draft_is_as_fast_as_the_fastest(choices):
    first, second = choices
    assert second.acceptance_to_lead > second.plan.question.acceptance.value
    better = planned(second.name, acceptance=Bernoulli(second.acceptance_to_lead))
    assert better.drafting.tpot_s == pytest.approx(first.best.tpot_s, rel=0.05)


@pytest.mark.parametrize("head", HEADS)
def test_a_head_is_a_layer_of_its_target_and_drafts_on_its_lane_alone(head):
    target = model_shape("qwen3-8b")
    shape = head_shape(head, target)
    assert shape.num_layers == 1
    assert shape.layer_parameters == pytest.approx(target.layer_parameters)
    assert shape.head_bytes("bf16") <= target.head_bytes("bf16")
    plan = planned(head)
    assert all(one.pair.is_pooled for one in plan.ranking)
    assert plan.question.acceptance.value > 0.7
    assert planned(head, acceptance=Bernoulli(0.5)).question.acceptance.value == 0.5


def test_a_head_of_a_mixture_keeps_its_experts_or_reads_what_a_token_does():
    target = model_shape("qwen3-30b-a3b")
    assert head_shape("mtp", target).num_experts == target.num_experts
    assert head_shape("eagle3", target).num_experts == 0


def test_machines_are_ranked_and_one_that_holds_nothing_says_why(choices):
    def plan(name):
        if name == "small":
            raise PlanError("fits nowhere")
        return [choices[0 if name == "fast" else 1]]

    first, second, last = choose_machine(["small", "slow", "fast"], plan)
    assert (first.name, second.name) == ("fast", "slow")
    assert (last.name, last.drafts, last.refused) == ("small", [], "fits nowhere")
    with pytest.raises(PlanError, match="fits nowhere"):
        choose_machine(["small"], plan)
