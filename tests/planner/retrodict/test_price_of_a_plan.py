"""A public measurement is priced as a plan of the same machine is, which quotes the accuracy of these predictions."""

import pytest
from pydantic import ValidationError

from costs.cost_model import Part
from costs.prices import Prices, calls_s
from costs.round_plan import DRAFT_STEP
from mirrorsd.pair_on_platform import PlannedMachine, question_of
from planner.retrodict.cases import Case
from planner.retrodict.predicted_speeds import PredictedCase
from sim.derived.derived_profile import Demand, derived_profile


@pytest.mark.parametrize("context", [512, 32_000])
@pytest.mark.parametrize(
    ("label", "target", "drafter", "part"),
    [
        ("RTX 3090", "llama-3.1-8b", "llama-3.2-3b", DRAFT_STEP),
        ("2x RTX 3090", "qwen3-32b", "qwen3-0.6b", DRAFT_STEP),
        ("8x H100", "llama-3.1-70b", "eagle3", DRAFT_STEP),
        ("H100", "llama-3.1-8b", "medusa", Part("heads")),
    ],
)
def test_target_and_draft_cost_what_they_do_in_a_plan(label, target, drafter, part, context):
    """A draft's cache was free: on an RTX 3090 a gain of 1.12 was predicted at 32k where a plan predicts a loss."""
    drafting = {"kind": "draft", "shape": drafter, "weights": "fp16"} if part == DRAFT_STEP else {"kind": drafter}
    drafting = drafting if drafter != "eagle3" else {"kind": drafter}
    told = {"id": "one", "engine": "vLLM", "target": {"shape": target, "weights": "fp16"}, "device": label}
    found = PredictedCase.of(Case.model_validate(told | {"drafter": drafting}))
    machine = PlannedMachine(label, (), "vllm")
    asked = question_of(target, drafter, machine, lengths=(64, 32), weights=("fp16", drafting.get("weights")))
    lane = "gpus" if "x " in label else "gpu"
    planned = derived_profile(
        asked.platform, Demand(target=asked.target, draft=found.draft.model, lanes=[lane], exits=())
    )
    prices = Prices(planned.profile, planned.costs)
    assert found.draft.step == {part: 1}
    step_s = calls_s(found._drafting, found.draft.step, 1, context) + found.cost.device.engine_step_s
    assert step_s == pytest.approx(prices.calls_s(lane, {part: 1}, 1, context))
    plain_s = prices.pass_s(lane, 1, context) + planned.profile.lane(lane).dispatch_s
    assert found.plain_s(context) == pytest.approx(plain_s)


def test_a_draft_on_a_device_of_its_own_has_that_alone():
    """Its steps were shared out over the target's devices."""
    told = {"id": "one", "engine": "vLLM", "target": {"shape": "llama-3.1-70b", "weights": "bf16"}}
    drafting = {"kind": "draft", "shape": "llama-3.2-1b", "parallel": True}
    labels = "5x H100", "5x H100, TP4", "1x H100"
    found = [PredictedCase.of(Case.model_validate(told | {"device": one, "drafter": drafting})) for one in labels]
    named = {"kind": "SSD", "shape": "llama-3.2-1b"}  # which says that it drafts apart
    found += [PredictedCase.of(Case.model_validate(told | {"device": labels[0], "drafter": named}))]
    assert [one.machine.num_together for one in found] == [4, 4, 1, 4]
    steps_s = [calls_s(one._drafting, one.draft.step, 1, 512) for one in found]
    assert steps_s == pytest.approx(4 * [steps_s[0]])


def test_models_of_rotary_positions_are_priced_at_every_context_of_a_public_run():
    """A draft of 2,048 positions was told to have 8,192, and refused beyond."""
    told = {"id": "one", "engine": "llama.cpp", "device": "RTX 4090", "context": 16_384}
    told |= {"target": {"shape": "llama-2-7b", "weights": "q4_k_m"}, "published_tokens_per_s": {3: 150.0}}
    case = Case.model_validate(told | {"drafter": {"kind": "draft", "shape": "amd-llama-135m"}})
    found = PredictedCase.of(case)
    assert (found.target.shape.max_position, found.draft.model.shape.max_position) == (4096, 2048)
    assert found.absolute(next(iter(case.measured))).value > found.plain(16_384).value
    with pytest.raises(ValidationError):
        Case.model_validate(told | {"drafter": {"kind": "none"}, "context": 10**400})
