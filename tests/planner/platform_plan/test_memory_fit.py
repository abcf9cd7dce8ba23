from dataclasses import replace

import pytest

from hwprofiles.model_shape import model_shape
from hwprofiles.platform import load_platform
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import USABLE, USABLE_OF_A_CARD, memory_needs
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import assumed_question
from sim.derived.roofline import StoredModel

TARGET, DRAFT = model_shape("qwen3-14b"), model_shape("qwen3-0.6b")


def needs(platform, pair, *, weights="bf16", num_tokens=1000, num_branches=100):
    return memory_needs(
        load_platform(platform),
        pair,
        StoredModel(shape=TARGET, weights=weights),
        StoredModel(shape=DRAFT, weights=weights),
        num_tokens=num_tokens,
        num_branches=num_branches,
    )


def test_one_memory_holds_both_models_their_keys_and_values_and_the_branches():
    (need,) = needs("lunar-lake", LanePair("gpu", "npu"))
    assert need.weights_bytes == TARGET.weight_bytes("bf16") + DRAFT.weight_bytes("bf16")
    assert need.kv_bytes == 1000 * (TARGET.kv_bytes_per_token() + DRAFT.kv_bytes_per_token())
    assert need.branches_bytes == 100 * DRAFT.kv_bytes_per_token()
    assert need.capacity_bytes == pytest.approx(3.2e10 * USABLE.value)


def test_a_misfit_is_said_with_its_numbers():
    (need,) = needs("lunar-lake", LanePair("gpu", "npu"))
    assert not need.fits
    assert need.in_words.startswith("target on gpu, draft on npu: memory has to hold 31.0 GB (30.7 GB weights")
    assert need.in_words.endswith("28.8 GB are usable: too little.")
    (smaller,) = needs("lunar-lake", LanePair("gpu", "npu"), weights="int4")
    assert smaller.fits


def test_models_that_take_turns_prepare_no_branches():
    (need,) = needs("lunar-lake", LanePair("gpu", "gpu", in_turn=True))
    assert need.branches_bytes == 0
    of_group, alone = needs("h100x2", LanePair("gpus", "gpu0", in_turn=True))
    assert (of_group.memory, of_group.branches_bytes, alone.branches_bytes) == ("gpu0", 0, 0)
    assert of_group.kv_bytes == 1000 * (TARGET.kv_bytes_per_token() / 2 + DRAFT.kv_bytes_per_token())


def test_devices_with_memories_of_their_own_hold_one_model_each():
    on_target, on_draft = needs("h100x2", LanePair("gpu0", "gpu1"))
    assert (on_target.weights_bytes, on_draft.weights_bytes) == (
        TARGET.weight_bytes("bf16"),
        DRAFT.weight_bytes("bf16"),
    )
    assert on_target.capacity_bytes == pytest.approx(8e10 * USABLE_OF_A_CARD.value)


def test_a_group_holds_equal_shares():
    found = needs("h100x2", LanePair("gpus", "gpus", in_turn=True))
    assert [need.memory for need in found] == ["gpu0", "gpu1"]
    whole = TARGET.weight_bytes("bf16") + DRAFT.weight_bytes("bf16")
    assert [need.weights_bytes for need in found] == [pytest.approx(whole / 2)] * 2


def test_a_cache_of_eight_bits_is_half_as_large_and_makes_long_contexts_faster():
    def asked(cache_bits):
        models = (replace(model, cache_bits=cache_bits) for model in (whole.target, whole.draft))
        return plan_platform(replace(whole, **dict(zip(("target", "draft"), models, strict=True))))

    whole = assumed_question(
        load_platform("m4-max"),
        StoredModel(shape=TARGET, weights="int4"),
        StoredModel(shape=DRAFT, weights="int4"),
        num_prompt_tokens=16_384,
        num_new_tokens=16,
    )
    full, half = asked(16), asked(8)
    assert half.needs[0].kv_bytes == full.needs[0].kv_bytes / 2
    assert half.needs[0].weights_bytes == full.needs[0].weights_bytes
    assert 0.7 < half.plain.tpot_s / full.plain.tpot_s < 0.9


def test_a_card_of_24_gb_holds_what_people_run_on_it():
    """32B in Q4_K_M with 8k tokens on one, and 70B with a draft on two: cards have GiB, and no system in them."""
    for platform, target, draft, num_tokens in (
        ("rtx3090", "qwen2.5-32b", "qwen2.5-0.5b", 8192 + 128),
        ("2xrtx3090", "llama-3.1-70b", "llama-3.2-1b", 640),
    ):
        machine = load_platform(platform)
        lane = "gpus" if "gpus" in machine.groups else "gpu"
        models = [StoredModel(shape=model_shape(name), weights="q4_k_m") for name in (target, draft)]
        found = memory_needs(
            machine, LanePair(lane, lane, in_turn=True), *models, num_tokens=num_tokens, num_branches=0
        )
        assert all(need.fits for need in found), [need.in_words for need in found]
