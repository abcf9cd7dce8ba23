from dataclasses import replace

import pytest

from hwprofiles.overrides import with_devices, with_overrides
from hwprofiles.platform import load_platform
from mirrorsd.pair_on_platform import plan_pair
from planner.plan_engines import engines_of
from planner.platform_plan.device_pairs import USABLE, USABLE_OF_A_CARD, LanePair
from planner.platform_plan.memory_fit import needs_of
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.schedules import most_branch_tokens
from tests.planner.platform_plan.conftest import question


def asking(platform, **more):
    return question(platform, **{"weights": "bf16", "lengths": (900, 100)} | more)


def sizes(asked):
    """Weights and cache of target and draft, and the draft's branches."""
    models = asked.target, asked.draft
    weights = [one.shape.weight_bytes("bf16") for one in models]
    caches = [one.kv_bytes(asked.num_tokens) for one in models]
    return weights, caches, most_branch_tokens() * (asked.draft.kv_bytes(1) - asked.draft.kv_bytes(0))


def test_one_memory_holds_both_models_their_keys_and_values_and_the_branches():
    asked = asking("lunar-lake")
    (need,), (weights, caches, branches) = needs_of(asked, LanePair("gpu", "npu")), sizes(asked)
    assert (need.weights_bytes, need.kv_bytes, need.branches_bytes) == (sum(weights), sum(caches), branches)
    assert need.capacity_bytes == pytest.approx(3.2e10 * USABLE.value)
    (several,) = needs_of(asked, LanePair("gpu", "npu"), num_sequences=3)
    assert (several.kv_bytes, several.branches_bytes) == pytest.approx((3 * sum(caches), 3 * branches))


def test_a_misfit_is_said_with_its_numbers():
    (need,) = needs_of(asking("lunar-lake"), LanePair("gpu", "npu"))
    assert not need.fits
    assert need.in_words.startswith("target on gpu, draft on npu: memory has to hold ")
    assert " GB (30.7 GB weights + " in need.in_words
    assert need.in_words.endswith("28.8 GB are usable: too little.")
    (smaller,) = needs_of(asking("lunar-lake", weights="int4"), LanePair("gpu", "npu"))
    assert smaller.fits


def test_each_memory_holds_what_runs_there_and_turns_prepare_no_branches():
    asked = asking("h100x2")
    (target, draft), (of_target, of_draft), branches = sizes(asked)
    pairs = {
        LanePair("gpu0", "gpu1"): [("gpu0", target, of_target, 0), ("gpu1", draft, of_draft, branches)],
        LanePair.alone("gpu0"): [("gpu0", target + draft, of_target + of_draft, 0)],
        LanePair("gpus", "gpu0", in_turn=True): [
            ("gpu0", target / 2 + draft, of_target / 2 + of_draft, 0),
            ("gpu1", target / 2, of_target / 2, 0),
        ],
        LanePair.alone("gpus"): [
            (gpu, (target + draft) / 2, (of_target + of_draft) / 2, 0) for gpu in ("gpu0", "gpu1")
        ],
    }
    for pair, expected in pairs.items():
        for need, (memory, *num_bytes) in zip(needs_of(asked, pair), expected, strict=True):
            assert need.memory == memory
            assert [need.weights_bytes, need.kv_bytes, need.branches_bytes] == pytest.approx(num_bytes)
            assert need.capacity_bytes == pytest.approx(8e10 * USABLE_OF_A_CARD.value)


def test_each_device_of_a_group_holds_the_whole_of_compressed_keys_and_values():
    """DeepSeek-V3 by vLLM on eight GPUs: 61 x 576 x 2 bytes a token of each of 32 sequences, not an eighth."""
    asked = asking("h200x8", weights="fp8", models=("deepseek-v3", "deepseek-v3"), lengths=(32000, 127))
    needs = needs_of(asked, LanePair.alone("gpus"), num_sequences=32, alone=True)
    assert {need.kv_bytes for need in needs} == {32 * asked.num_tokens * 61 * 576 * 2}
    assert not any(need.fits for need in needs)
    assert all(need.fits for need in needs_of(asked, LanePair.alone("gpus"), alone=True))


def test_a_cache_of_eight_bits_is_half_as_large_and_makes_long_contexts_faster():
    whole = asking("m4-max", weights="int4", lengths=(16_384, 16))

    def asked(bits):
        models = {name: replace(getattr(whole, name), cache_bits=bits) for name in ("target", "draft")}
        return plan_platform(replace(whole, **models))

    full, half = asked(16), asked(8)
    assert half.needs[0].kv_bytes == full.needs[0].kv_bytes / 2
    assert half.needs[0].weights_bytes == full.needs[0].weights_bytes
    assert 0.7 < half.plain.tpot_s / full.plain.tpot_s < 0.9


@pytest.mark.parametrize(
    ("platform", "lane", "models", "num_tokens"),
    [
        ("rtx3090", "gpu", ("qwen2.5-32b", "qwen2.5-0.5b"), 8192),
        ("2xrtx3090", "gpus", ("llama-3.1-70b", "llama-3.2-1b"), 512),
    ],
)
def test_a_card_of_24_gb_holds_what_people_run_on_it(platform, lane, models, num_tokens):
    """32B in Q4_K_M with 8k tokens on one, and 70B with a draft on two: cards have GiB, and no system in them."""
    asked = asking(platform, weights="q4_k_m", models=models, lengths=(num_tokens, 128))
    found = needs_of(asked, LanePair.alone(lane))
    assert all(need.fits for need in found), [need.in_words for need in found]


@pytest.mark.parametrize(
    ("mac", "total_gb", "usable_gb"),
    [
        ("Apple M4 16 GB", 16, 12.71),
        ("Apple M4 24 GB", 24, 19.07),
        ("Apple M3 Max 36 GB", 36, 30.15),
        ("Apple M4 Pro 48 GB", 48, 40.20),
        ("Apple M1 Max 64 GB", 64, 55.66),
        ("m4-max", 128, 115.4),
    ],
)
def test_the_gpu_of_a_mac_holds_what_macos_grants_it_and_other_devices_the_rest(mac, total_gb, usable_gb):
    asked = asking(mac, weights="q6_k")
    small = asking(mac, weights="q6_k", models=("qwen3-0.6b", "qwen3-0.6b"))
    (on_gpu,), (on_cpu,) = (
        needs_of(one, LanePair.alone(lane), alone=True) for one, lane in ((asked, "gpu"), (small, "cpu"))
    )
    total = total_gb * 1e9 * USABLE.value
    assert on_gpu.capacity_bytes == pytest.approx(usable_gb * 1e9, rel=0.003)
    assert (on_cpu.capacity_bytes, on_cpu.limit) == (pytest.approx(total), "")
    assert ("by the default limit of macOS" in on_gpu.in_words) is (total_gb < 128)
    (beside,) = needs_of(asked, LanePair("gpu", "cpu"))
    drafts_share = beside.needed_bytes - on_gpu.needed_bytes
    assert beside.capacity_bytes == pytest.approx(min(total, on_gpu.capacity_bytes + drafts_share))


def test_a_part_of_a_shared_memory_that_a_device_has_for_itself_holds_its_models_and_the_rest_those_of_others():
    """As a BIOS splits it; a chip's sheet gives the whole memory, which is no such part."""
    whole = load_platform("strix-halo")
    split = with_overrides(whole, {"gpu.memory_bytes": "10GB"})
    (need,) = needs_of(asking(split), LanePair.alone("gpu"), alone=True)
    assert (need.memory, need.capacity_bytes) == ("gpu", 1e10 * USABLE_OF_A_CARD.value)
    on_gpu, on_cpu = needs_of(asking(split), LanePair("gpu", "cpu"))
    assert (on_gpu.memory, on_cpu.memory) == ("gpu", "memory")
    rest = whole.memory_pools["memory"].memory_bytes.value - 1e10
    assert on_cpu.capacity_bytes == pytest.approx(rest * USABLE.value)
    assert [one.memory for one in needs_of(asking(whole), LanePair("gpu", "cpu"))] == ["memory"]
    everything = with_overrides(whole, {"gpu.memory_bytes": "1TB"})
    assert [one.memory for one in needs_of(asking(everything), LanePair("gpu", "cpu"))] == ["memory"]


def test_what_does_not_fit_into_the_part_of_a_device_is_not_planned_there():
    part = {"gpu.memory_bytes": "10GB"}
    asked = {"weights": "q4_k_m", "lengths": (64, 16)}
    before, after = (plan_pair("qwen3-32b", "qwen3-0.6b", "strix-halo", changes=one, **asked) for one in (None, part))
    assert before.plain.pair.target == "gpu"
    assert "gpu" not in {one.pair.target for one in after.ranking}
    assert any("gpu has to hold 19.8 GB" in one and "too little" in one for one in after.left_out)


def test_a_device_that_shares_the_hosts_memory_has_no_part_of_it_by_its_data_sheet(tmp_path):
    (path := tmp_path / "mine.yaml").write_text("{name: Mine, kind: npu, memory_bytes: 1 GB, bf16_flops: 10 TFLOPS}")
    machine = with_devices(load_platform("radeon-890m"), [f"{path}@unified-memory"])
    assert [one.memory for one in needs_of(asking(machine), LanePair("gpu", "mine"))] == ["memory"]


@pytest.mark.parametrize(
    ("card", "expected"), [("rtx4080super", ["llama.cpp"]), ("rtx4090", ["llama.cpp", "vllm", "sglang"])]
)
def test_engines_that_keep_embeddings_on_cards_are_named_where_these_have_room(card, expected):
    plan = plan_pair("llama-3.1-8b", "llama-3.2-1b", card, lengths=(512, 128), weights="bf16")
    assert plan.plain.place == "target on gpu"
    assert [one.engine for one in engines_of(plan, plan.plain)] == expected
