"""Layers of a target that is too large for a card, on the card and on the CPU; of a mixture the experts."""

from dataclasses import replace

import pytest

from costs.cost_model import Part
from decoding.errors import PlanError
from hwprofiles.models.head_shapes import LOOKUP, head_shape
from hwprofiles.overrides import with_devices, with_overrides
from hwprofiles.platform import Platform, load_platform
from planner.platform_plan import partial_offload as module
from planner.platform_plan.page import render_page
from planner.platform_plan.partial_offload import layer_split, partial_offload, pass_s
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import demand_of
from sim.derived.derived_profile import derived_profile
from sim.derived.roofline import StoredModel
from tests.planner.platform_plan.conftest import question

MODELS = ("llama-3.1-70b", "llama-3.2-1b")


def planned(platform="rtx3090", weights="q4_k_m", **asked):
    return plan_platform(question(platform, weights=weights, **{"models": MODELS, "lengths": (64, 24)} | asked))


@pytest.fixture(scope="module")
def on_a_3090():
    return planned()


def test_as_many_layers_are_on_the_card_as_it_holds_beside_the_draft(on_a_3090):
    split = partial_offload(on_a_3090)
    assert (list(split.layers), split.cpu, split.of_layers) == (["gpu"], "cpu", 80)
    assert 38 <= split.layers["gpu"] <= 46, "as people report of 24 GB and 40 GB of weights"
    larger = partial_offload(planned(changes={"gpu.memory_bytes": "32 GB"}))
    assert larger.layers["gpu"] > split.layers["gpu"]
    assert larger.plain_tpot_s < split.plain_tpot_s


def test_the_page_has_it_where_it_beats_the_whole_table(on_a_3090):
    split = partial_offload(on_a_3090)
    page = render_page(on_a_3090)
    assert split.in_words in page
    assert f"<code>{split.options}</code>" in page


def test_it_is_as_fast_as_both_parts_and_speculation_gains_there(on_a_3090):
    split = partial_offload(on_a_3090)
    num_layers = split.layers["gpu"]
    share = 1 - num_layers / split.of_layers
    assert share * on_a_3090.plain.tpot_s < split.plain_tpot_s < on_a_3090.plain.tpot_s
    assert split.num_drafted > 0
    assert split.tpot_s < split.plain_tpot_s
    assert f" -ngl {num_layers + 1} --spec-type draft-simple" in split.options, "the lm_head counts, and is the first"
    assert f"--spec-draft-n-max {split.num_drafted}" in split.options
    assert f"Faster than all of the table: {num_layers} of 80 layers on gpu and the rest on cpu" in split.in_words
    assert split.tpot_s < min(one.tpot_s for one in on_a_3090.ranking)


def test_its_draft_reads_verified_rows_again_too(on_a_3090, monkeypatch):
    split, cost = partial_offload(on_a_3090), on_a_3090.costs["gpu"]
    monkeypatch.setattr(module, "DRAFT_READS", Part("lm_head"))  # less than a pass of the draft
    cheaper = partial_offload(on_a_3090)
    assert cost.one(Part("lm_head"), 4, 64) < cost.one(Part("draft_reads"), 4, 64)
    assert cheaper.tpot_s < split.tpot_s


def test_every_card_is_filled_and_the_command_says_how():
    """Llama-3.1-70B in Q4_K_M on two cards of 12 GB: twenty layers of half a gigabyte on each."""
    two, one = (partial_offload(planned(name)) for name in ("2xrtx3060", "rtx3060"))
    first, second = two.layers.values()
    assert list(two.layers) == ["gpu0", "gpu1"]
    assert first + second > 1.9 * one.layers["gpu"]
    assert two.plain_tpot_s < 0.8 * one.plain_tpot_s
    assert f" -ngl {first + second + 1} -ts {first},{second + 1} --spec-type" in two.options
    assert two.options.endswith(" -devd GPU0"), "the draft is on one of them"
    assert "--split-mode" not in two.options
    assert f"{first} of 80 layers on gpu0, {second} on gpu1 and the rest on cpu" in two.in_words


@pytest.mark.parametrize(
    ("platform", "added", "fast", "slow"),
    [("rtx3090", "rtx3060", "gpu", "rtx3060"), ("rtx3060", "rtx3090", "rtx3090", "gpu")],
)
def test_a_card_of_another_kind_is_filled_after_the_faster_one(platform, added, fast, slow):
    """So the command has them too, with the devices to name: CUDA may list them in another order than a platform."""
    alone = planned("rtx3090", "q6_k", models=("qwen3-32b", "qwen3-0.6b"))
    beside = planned(with_devices(load_platform(platform), [added]), "q6_k", models=("qwen3-32b", "qwen3-0.6b"))
    split, before = partial_offload(beside), partial_offload(alone)
    assert split.layers[fast] > 4 * split.layers[slow] > 0
    assert (
        f"-ngl 65 -ts {split.layers[fast]},{split.layers[slow] + 1} -dev {fast.upper()},{slow.upper()} "
        in split.options
    )
    assert f"{split.layers[fast]} of 64 layers on {fast} and {split.layers[slow]} on {slow}" in split.in_words
    assert sum(split.layers.values()) == 64, "35 GB hold it"
    assert "the rest" not in split.in_words
    assert split.plain_tpot_s < before.plain_tpot_s / 2


@pytest.mark.parametrize(
    ("platform", "weights", "models"),
    [("rtx3060", "q4_k_m", ("llama-3.1-70b", "llama-3.1-8b")), ("2xrtx3060", "q6_k", ("qwen3-32b", "qwen3-8b"))],
)
def test_without_room_for_the_draft_the_target_alone_is_split(platform, weights, models):
    """Of 16 GB in bf16, which no card of 12 holds; a lookup takes no room."""
    asked = question(platform, weights=weights, models=models, lengths=(64, 24))
    large, looked_up = (
        partial_offload(plan_platform(replace(asked, draft=draft)))
        for draft in (
            replace(asked.draft, weights="bf16"),
            StoredModel(shape=head_shape(LOOKUP, asked.target.shape), weights=weights, head=LOOKUP),
        )
    )
    assert large.layers == looked_up.layers
    assert (large.num_drafted, large.tpot_s, large.plain_tpot_s) == (0, *[looked_up.plain_tpot_s] * 2)
    assert "-md" not in large.options


@pytest.mark.parametrize(("rate", "pays"), [(0.75, True), (0.3, False)])
def test_speculation_is_compared_with_plain_decoding_that_has_the_room_of_the_draft(rate, pays):
    """A draft of 5 GB takes the place of seventeen of 36 layers; where it does not pay for them it is left out."""
    asked = question("rtx3060", weights="q4_k_m", rate=rate, models=("qwen3-32b", "qwen3-8b"), lengths=(64, 24))
    lookup = StoredModel(shape=head_shape(LOOKUP, asked.target.shape), weights="q4_k_m", head=LOOKUP)
    split, alone = (partial_offload(plan_platform(one)) for one in (asked, replace(asked, draft=lookup)))
    assert split.plain_tpot_s == alone.plain_tpot_s
    assert (split.num_drafted > 0) is pays
    assert (split.layers == alone.layers) is not pays
    assert split.tpot_s <= split.plain_tpot_s


def test_a_card_that_holds_a_few_layers_need_not_hold_the_draft_or_the_lm_head_too():
    """Of three cards the first has the draft and the last the `lm_head`."""
    three = with_devices(load_platform("rtx3090"), ["rtx3060"])
    three = with_devices(with_overrides(three, {"rtx3060.memory_bytes": "1.5 GB"}), ["rtx3060@pcie-3-x16"])
    asked = question(three, weights="q4_k_m", models=("llama-3.1-70b", "llama-3.2-3b"), lengths=(64, 24))
    split = layer_split(asked, has_draft=True)
    assert split.home == "gpu"
    assert list(split.layers) == ["gpu", "rtx3060", "rtx3060-2"]


def test_a_cpu_that_does_not_hold_the_target_holds_the_rest():
    with pytest.raises(
        PlanError, match=r"of 80 layers on gpu and the rest on cpu would fit \(llama.cpp's -ngl \d+: 2\.\d+ t"
    ):
        planned(changes={"cpu.memory_bytes": "32 GB"})
    with pytest.raises(PlanError, match=r"--weights .* 26 of 80 layers on gpu0, 26 on gpu1, 25 on gpu2 and the"):
        planned("3xrtx-a6000", "bf16")
    with pytest.raises(PlanError, match="fits nowhere") as refused:
        planned(changes={"cpu.memory_bytes": "16 GB"})
    assert "layers" not in str(refused.value)


def test_what_shares_its_memory_with_the_cpu_is_no_card():
    """Llama-3.1-70B in Q4_K_M is 42.7 GB; both devices are in one memory of 32, whatever the GPU's own lines say."""
    gpu = {"name": "AMD Radeon 780M", "kind": "gpu", "bf16_flops": "16 TFLOP/s"}
    memory = {"devices": ["gpu", "cpu"], "bytes_per_s": "90 GB/s", "memory_bytes": "32 GB"}
    chip = {
        "name": "A chip",
        "devices": {"gpu": gpu, "cpu": {"sheet": "generic-cpu"}},
        "memory_pools": {"memory": memory},
        "links": [{"between": ["gpu", "cpu"], "sheet": "unified-memory"}],
    }
    with pytest.raises(PlanError, match="fits nowhere") as refused:
        planned(Platform.model_validate(chip))
    assert "layers" not in str(refused.value)


def test_a_head_in_a_file_of_its_own_is_on_the_card_that_has_room_for_it():
    """Without `-devd` llama.cpp spreads it over all cards, and the first is filled to the brim."""
    asked = question("2xrtx3060", weights="q4_k_m", models=MODELS, lengths=(64, 24))
    draft = StoredModel(shape=head_shape("eagle3", asked.target.shape), weights="q4_k_m", head="eagle3")
    split = partial_offload(plan_platform(replace(asked, draft=draft)))
    assert " --spec-type draft-eagle3 -md DRAFT.gguf " in split.options
    assert split.options.endswith(" -devd GPU1")


@pytest.mark.parametrize(("target", "num_more"), [("qwen3.6-27b", 1), ("gemma-4-31b", 0)])
def test_a_head_in_the_targets_file_is_a_block_more_on_its_card(target, num_more):
    asked = question("rtx3090", weights="q8_0", models=(target, target), lengths=(64, 24))
    draft = StoredModel(shape=head_shape("mtp", asked.target.shape), weights="q8_0", head="mtp")
    split = layer_split(replace(asked, draft=draft), has_draft=False)
    assert split.options == f"-ngl {split.layers['gpu'] + 1 + num_more}"


def test_there_is_none_where_all_on_the_cpu_is_faster():
    assert partial_offload(planned(changes={"gpu.memory_bytes_per_s": "20 GB/s"})) is None


@pytest.mark.parametrize(
    "asked",
    [{"models": ("qwen3-8b", "qwen3-0.6b")}, {"platform": "m4-max"}],
    ids=["it fits", "one memory"],
)
def test_there_is_none_where_nothing_has_to_be_split(asked):
    assert partial_offload(planned(**asked)) is None


def mixture(platform="rtx3090", model="gpt-oss-120b", weights="mxfp4_moe", **asked):
    return question(platform, weights=weights, **{"models": (model, model), "lengths": (512, 128)} | asked)


def test_experts_of_as_few_layers_as_needed_are_on_the_cpu():
    """Experts of a layer are 128 * 3 * 2880 * 2880 weights of 4.25 bits, 1.69 GB: those of twelve fit."""
    asked = mixture()
    split = layer_split(asked, has_draft=False)
    expert_bytes = 128 * 3 * 2880 * 2880 * 4.25 / 8
    shape, weights = asked.target.shape, asked.target.weights
    room = 0.96 * 24e9 - shape.head_bytes(weights) - asked.target.kv_bytes(asked.num_tokens)
    room -= 36 * (shape.layer_weight_bytes(weights) - shape.expert_bytes(weights, 1))
    assert expert_bytes * (36 - len(split.apart)) < room < expert_bytes * (37 - len(split.apart))
    assert (dict(split.layers), split.apart) == ({"gpu": 36}, range(24))
    assert split.options == "-ngl 37 --n-cpu-moe 24"
    assert str(split) == "36 of 36 layers on gpu and the experts of 24 on cpu"
    larger = layer_split(mixture(changes={"gpu.memory_bytes": "48 GB"}), has_draft=False)
    assert larger.apart == range(10)


def test_first_layers_without_experts_count_for_llama_cpp():
    """The first of GLM-4.5-Air's 46 layers is dense; an MTP layer is one more on the card."""
    asked = mixture("rtx4090", "glm-4.5-air", "q4_k_m", changes={"cpu.memory_bytes": "128 GB"})
    split = layer_split(asked, has_draft=False)
    assert split.apart.start == 1
    assert split.options == f"-ngl 47 --n-cpu-moe {1 + len(split.apart)}"
    head = StoredModel(shape=head_shape("mtp", asked.target.shape), weights="q4_k_m", head="mtp")
    with_head = layer_split(replace(asked, draft=head), has_draft=False)
    assert with_head.options == f"-ngl 48 --n-cpu-moe {1 + len(with_head.apart)}"
    assert len(with_head.apart) > len(split.apart), "it has 128 experts, too"


def test_layers_with_experts_are_shared_out_by_their_bytes():
    """By counts alone, llama.cpp would have all that are not on the CPU on the last card."""
    split = layer_split(mixture("2xrtx3090"), has_draft=False)
    first, second = split.layers.values()
    assert split.options == f"-ngl 37 -ts {first},{second + 1} --n-cpu-moe {len(split.apart)}"
    assert split.apart_on == {"gpu0": len(split.apart), "gpu1": 0}
    assert abs(first - len(split.apart) - second) <= 1, "as many with experts on either"


def test_a_card_that_does_not_even_hold_the_rest_holds_as_many_layers_as_it_can():
    small = {"gpu.memory_bytes": "4 GB", "cpu.memory_bytes": "192 GB"}
    split = layer_split(mixture("rtx4060", "qwen3-235b-a22b", "q4_k_m", changes=small), has_draft=False)
    assert split.num_left > 0
    assert split.apart_on == dict(split.layers)
    assert split.options == f"-ngl {split.layers['gpu'] + 1} --n-cpu-moe 94"


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


def test_a_verification_reads_more_experts_from_the_cpu():
    """Of 128 experts four rows touch almost four times as many as one; a dense layer is read once."""
    asked, dense = mixture(), question("rtx3090", weights="q4_k_m", models=MODELS)
    of_mixture, of_dense = (
        pass_s(one, split, 4) / pass_s(one, split, 1)
        for one, split in ((one, layer_split(one, has_draft=False)) for one in (asked, dense))
    )
    assert of_dense < 1.5
    assert 3 < of_mixture < 4
    plan = plan_platform(mixture(models=("gpt-oss-120b", "gpt-oss-20b"), changes={"cpu.memory_bytes": "128 GB"}))
    assert (plan.split.num_drafted, plan.split.num_apart) == (0, 24)
    assert plan.split.options == "llama-server -m TARGET.gguf -ngl 37 --n-cpu-moe 24"


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
    split = split._replace(apart=range(split.apart.start, num_first or split.apart.stop))
    assert 1 / pass_s(asked, split, 1) == pytest.approx(tokens_per_s, rel=0.3)
