"""Experts of a mixture that is too large for a card: those of as few layers as needed are on the CPU."""

from dataclasses import replace

import numpy as np
import pytest

from costs.cost_model import Part
from costs.prices import Prices
from costs.round_plan import LAYER
from hwprofiles.models.head_shapes import head_shape
from mirrorsd.pair_on_platform import plan_pair
from planner.plan_engines import engines_of
from planner.platform_plan.advice import advice
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import demand_of
from planner.platform_plan.split_places import held_by, in_words, layer_split
from sim.derived.derived_profile import derived_profile
from sim.derived.roofline import StoredModel
from tests.planner.platform_plan.conftest import question


def mixture(platform="rtx3090", model="gpt-oss-120b", weights="mxfp4_moe", **asked):
    return question(platform, weights=weights, **{"models": (model, model), "lengths": (512, 128)} | asked)


def pass_s(asked, split, rows):
    machine = derived_profile(asked.platform, demand_of(asked, [split.lane]))
    return Prices(machine.profile, machine.costs).pass_s(split.lane, rows, 512)


def options(asked, split, num_more=0):
    return split.options(asked.target.shape.dense_layers, num_more)


def test_experts_of_as_few_layers_as_needed_are_on_the_cpu():
    """Experts of a layer are 128 * 3 * 2880 * 2880 weights of 4.25 bits, 1.69 GB: those of twelve fit."""
    asked = mixture()
    split = layer_split(asked, has_draft=False)
    expert_bytes = 128 * 3 * 2880 * 2880 * 4.25 / 8
    shape, weights = asked.target.shape, asked.target.weights
    room = 0.96 * 24e9 - shape.head_bytes(weights) - asked.target.kv_bytes(asked.num_tokens)
    room -= 36 * (shape.layer_weight_bytes(weights) - shape.expert_bytes(weights, 1))
    assert expert_bytes * (36 - split.num_apart) < room < expert_bytes * (37 - split.num_apart)
    assert split.lane == "gpu(36) + cpu(24 experts)"
    assert options(asked, split) == "-ngl 37 --n-cpu-moe 24"
    assert in_words(split) == "36 of 36 layers on gpu and the experts of 24 on cpu"
    larger = layer_split(mixture(changes={"gpu.memory_bytes": "48 GB"}), has_draft=False)
    assert larger.num_apart == 10
    assert held_by(asked, split)["cpu"][0] == pytest.approx(24 * expert_bytes + 201088 * 2880 * 8.5 / 8)


def test_first_layers_without_experts_count_for_llama_cpp():
    """The first of GLM-4.5-Air's 46 layers is dense; an MTP layer is one more on the card."""
    asked = mixture("rtx4090", "glm-4.5-air", "q4_k_m", changes={"cpu.memory_bytes": "128 GB"})
    split = layer_split(asked, has_draft=False)
    assert options(asked, split) == f"-ngl 47 --n-cpu-moe {1 + split.num_apart}"
    head = StoredModel(shape=head_shape("mtp", asked.target.shape), weights="q4_k_m", head="mtp")
    with_head = layer_split(replace(asked, draft=head), has_draft=False)
    assert options(asked, with_head, 1) == f"-ngl 48 --n-cpu-moe {1 + with_head.num_apart}"
    assert with_head.num_apart > split.num_apart, "it has 128 experts, too"


def test_layers_with_experts_are_shared_out_by_their_bytes():
    """By counts alone, llama.cpp would have all that are not on the CPU on the last card."""
    asked = mixture("2xrtx3090")
    split = layer_split(asked, has_draft=False)
    first, second = split.layers.values()
    assert options(asked, split) == f"-ngl 37 -ts {first},{second + 1} --n-cpu-moe {split.num_apart}"
    assert split.apart_on() == {"gpu0": split.num_apart, "gpu1": 0}
    assert abs(first - split.num_apart - second) <= 1, "as many with experts on either"


def test_a_card_that_does_not_even_hold_the_rest_holds_as_many_layers_as_it_can():
    small = {"gpu.memory_bytes": "4 GB", "cpu.memory_bytes": "192 GB"}
    asked = mixture("rtx4060", "qwen3-235b-a22b", "q4_k_m", changes=small)
    split = layer_split(asked, has_draft=False)
    assert split.num_left > 0
    assert split.apart_on() == dict(split.layers)
    assert options(asked, split) == f"-ngl {split.layers['gpu'] + 1} --n-cpu-moe 94"
    assert split.lane == f"gpu({split.layers['gpu']}) + cpu({split.num_left}, {split.layers['gpu']} experts)"


def test_a_cpu_has_to_hold_the_experts_only():
    assert layer_split(mixture(changes={"cpu.memory_bytes": "48 GB"}), has_draft=False) is not None
    assert layer_split(mixture(changes={"cpu.memory_bytes": "32 GB"}), has_draft=False) is None
    assert layer_split(mixture(changes={"gpu.memory_bytes": "80 GB"}), has_draft=False) is None, "the card has all"


def test_a_pass_reads_experts_where_they_are_and_states_cross_to_them():
    asked = mixture()
    split = layer_split(asked, has_draft=False)
    cpu, gpu = (derived_profile(asked.platform, demand_of(asked, [lane])).costs[lane] for lane in ("cpu", "gpu"))
    expert_bytes = 4 * 3 * 2880 * 2880 * 4.25 / 8
    shape, weights = asked.target.shape, asked.target.weights
    on_gpu = 36 * shape.layer_weight_bytes(weights) + shape.head_bytes(weights) - 24 * expert_bytes
    reading_s = 24 * expert_bytes / cpu.device.bytes_per_s + on_gpu / gpu.device.bytes_per_s
    assert reading_s < pass_s(asked, split, 1) < 1.3 * reading_s
    far = mixture(changes={"cpu-gpu.latency_s": "1010 us"})
    assert pass_s(far, split, 1) - pass_s(asked, split, 1) == pytest.approx((2 * 24 + 1) * 1e-3)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_experts_elsewhere_cost_by_rows_what_they_do_in_a_whole_mixture_there(rows):
    """Their bytes over those of a whole layer on the CPU, of the experts that so many rows touch by chance."""
    asked = mixture(changes={"cpu.memory_bytes": "128 GB"})
    machine = derived_profile(asked.platform, demand_of(asked, [(lane := "gpu(36) + cpu(36 experts)")]))
    on_cpu, on_gpu, split = (machine.costs[one].shared(LAYER, rows) for one in ("cpu", "gpu", lane))
    experts_bytes = 128 * (1 - (1 - 4 / 128) ** rows) * 3 * 2880 * 2880 * 4.25 / 8
    layer_s = experts_bytes / on_cpu.num_bytes * max(on_cpu[1:])
    layer_s += (1 - experts_bytes / on_gpu.num_bytes) * max(on_gpu[1:])
    crossing_s = 73 * asked.platform.transfer_s("cpu", "gpu", rows * 2 * 2880)
    assert split.reading_s == pytest.approx(layer_s + crossing_s / 36)


def test_a_verification_reads_more_experts_from_the_cpu():
    """Of 128 experts four rows touch almost four times as many as one; a dense layer is read once."""
    asked, dense = mixture(), question("rtx3090", weights="q4_k_m", models=("llama-3.1-70b", "llama-3.2-1b"))
    of_mixture, of_dense = (
        pass_s(one, split, 4) / pass_s(one, split, 1)
        for one, split in ((one, layer_split(one, has_draft=False)) for one in (asked, dense))
    )
    assert of_dense < 1.5
    assert 3 < of_mixture < 4
    plan = plan_platform(mixture(models=("gpt-oss-120b", "gpt-oss-20b"), changes={"cpu.memory_bytes": "128 GB"}))
    assert plan.recommended is plan.plain
    (engine,) = engines_of(plan, plan.plain)
    assert engine.options == "llama-server -m TARGET.gguf -ngl 37 --n-cpu-moe 24"


@pytest.mark.parametrize(
    ("platform", "model", "weights", "changes", "num_first", "tokens_per_s"),
    [
        ("rtx3090", "gpt-oss-120b", "mxfp4_moe", {}, 26, 32.3),  # ai-maestro.online, llama-bench
        ("rtx5090", "gpt-oss-120b", "mxfp4_moe", {"cpu.memory_bytes": "96 GB"}, 36, 25.6),  # llama.cpp#15157, 14900K
        ("RTX 2080", "qwen3-30b-a3b", "q4_k_m", {"cpu.memory_bytes_per_s": "102 GB/s"}, 36, 36.7),  # llmfit#755
        ("rtx5090", "glm-4.6", "mxfp4_moe", {"cpu.memory_bytes": "256 GB"}, None, 6.17),  # postl.ai, GLM-4.7
    ],
)
def test_public_speeds_of_experts_on_the_cpu_are_met(platform, model, weights, changes, num_first, tokens_per_s):
    """Nothing is fitted to them; published speeds of one machine differ by as much."""
    asked = mixture(platform, model, weights, changes=changes)
    split = layer_split(asked, has_draft=False)
    if num_first is not None:
        split = split._replace(num_apart=num_first - asked.target.shape.dense_layers)
    assert 1 / pass_s(asked, split, 1) == pytest.approx(tokens_per_s, rel=0.3)


def test_a_public_speed_of_reading_a_prompt_with_experts_on_the_cpu_is_near_what_the_link_allows():
    """380 tokens/s of 4,096 on an RTX 3090 (ai-maestro.online), 44 GB crossing for each 512 at the link's peak."""
    asked = mixture(changes={"cpu.memory_bytes": "128 GB"}, lengths=(4096, 128))
    split = layer_split(asked, has_draft=False)._replace(num_apart=26)
    costs = derived_profile(asked.platform, demand_of(asked, [split.lane])).costs
    seconds = float(costs[split.lane].seconds(Part("prefill"), 4096, np.zeros(1))[0])
    assert 4096 / seconds == pytest.approx(380, rel=0.2)


def test_a_draft_that_has_no_room_beside_a_split_is_said_to_have_none():
    plan = plan_pair("gpt-oss-120b", "gpt-oss-20b", "rtx4070", lengths=(512, 128))
    assert plan.drafting is None
    assert "no memory has room for gpt-oss-20b in mxfp4_moe (12.1 GB) beside it" in advice(plan).why
