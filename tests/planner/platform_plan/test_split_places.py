"""Layers of a target that is too large for a card, on the card and on the CPU."""

from dataclasses import replace

import pytest

from costs.prices import Prices
from costs.round_plan import DRAFT_READS, DRAFT_STEP, LAYER, LM_HEAD
from decoding.errors import PlanError
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.models.head_shapes import LOOKUP, head_shape
from hwprofiles.overrides import with_devices, with_overrides
from hwprofiles.platform import Platform, load_platform
from planner.platform_plan.advice import advice
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.plan_page import render_page
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import demand_of
from planner.platform_plan.ranked_schedules import Doubts
from planner.platform_plan.split_places import held_by, in_words, layer_split
from sim.derived.derived_profile import derived_profile
from sim.derived.roofline import StoredModel
from tests.planner.platform_plan.conftest import question
from tests.planner.platform_plan.splits import MODELS, command, plain_beside, planned, split_of


@pytest.fixture(scope="module")
def on_a_3090():
    return planned()


def test_as_many_layers_are_on_the_card_as_it_holds_beside_the_draft(on_a_3090):
    split, alone = split_of(on_a_3090.drafting), split_of(on_a_3090.plain)
    assert (list(split.layers), split.cpu, split.num_layers) == (["gpu"], "cpu", 80)
    assert 38 <= split.layers["gpu"] <= 46, "as people report of 24 GB and 40 GB of weights"
    assert split.layers["gpu"] < alone.layers["gpu"], "which has the room of the draft"
    larger = planned(changes={"gpu.memory_bytes": "32 GB"})
    assert split_of(larger.drafting).layers["gpu"] > split.layers["gpu"]
    assert larger.plain.tpot_s < on_a_3090.plain.tpot_s


def test_its_lane_is_of_the_kind_of_the_last_card_where_heads_are(on_a_3090):
    lane = on_a_3090.profile.lane(on_a_3090.plain.pair.target)
    assert (lane.kind, lane.devices[-1]) == ("gpu", "gpu")


def test_memories_are_told_what_they_hold_of_it(on_a_3090):
    needs = {need.memory: need for need in on_a_3090.needs if need.pair == on_a_3090.drafting.pair}
    target, draft = on_a_3090.question.target, on_a_3090.question.draft
    layer_bytes = 0.96 * 24e9 - needs["gpu"].needed_bytes
    assert 0 <= layer_bytes < target.shape.layer_weight_bytes("q4_k_m"), "no further layer has room"
    models_bytes = target.shape.weight_bytes("q4_k_m") + draft.shape.weight_bytes("q4_k_m")
    models_bytes += draft.head_bytes  # whose table the CPU has, too
    assert sum(need.weights_bytes for need in needs.values()) == pytest.approx(models_bytes)
    caches = target.kv_bytes(on_a_3090.question.num_tokens) + draft.kv_bytes(on_a_3090.question.num_tokens)
    assert sum(need.kv_bytes for need in needs.values()) == pytest.approx(caches)
    assert on_a_3090.drafting.memory_bytes == pytest.approx(models_bytes + caches)


def test_the_page_shows_it_as_any_placement(on_a_3090):
    page = render_page(on_a_3090)
    split = split_of(on_a_3090.drafting)
    assert f"target on {split.lane}, draft on gpu" in page
    assert f"<code>{command(on_a_3090, on_a_3090.drafting)}</code>" in page
    assert f"q4_k_m, {split.layers['gpu']} of 80 layers" in page


def test_it_is_as_fast_as_both_parts_and_speculation_gains_there(on_a_3090):
    plain, drafting = on_a_3090.plain, on_a_3090.drafting
    split, on_cpu_s = split_of(drafting), plain_beside(on_a_3090).tpot_s
    share = split_of(plain).num_left / 80
    assert share * on_cpu_s < plain.tpot_s < on_cpu_s
    assert drafting.tpot_s < plain.tpot_s
    options = command(on_a_3090, drafting)
    assert f" -ngl {split.layers['gpu'] + 1} --spec-type draft-simple" in options, (
        "the lm_head counts, and is the first"
    )
    assert f"--spec-draft-n-max {drafting.schedule.num_speculative_tokens}" in options
    assert on_a_3090.ranking[0] is drafting


def test_a_pass_is_the_sum_of_its_parts_by_hand(on_a_3090):
    """Weights over bandwidths, the caches and the `lm_head` included; what kernels start is an eighth at most."""
    lane, target = on_a_3090.plain.pair.target, on_a_3090.question.target
    split, costs = LayerSplit.of(lane), on_a_3090.costs
    layer_bytes = target.shape.layer_weight_bytes("q4_k_m")
    by_hand_s = split.num_left * layer_bytes / costs["cpu"].device.bytes_per_s
    by_hand_s += (split.layers["gpu"] * layer_bytes + target.head_bytes) / costs["gpu"].device.bytes_per_s
    pass_s = Prices(on_a_3090.profile, costs).pass_s(lane, 1, 64)
    assert by_hand_s < pass_s < 9 / 8 * by_hand_s
    parts_s = [
        count * costs[device].one(LAYER, 1, 64) for device, count in (("cpu", split.num_left), *split.layers.items())
    ]
    crossing_s = on_a_3090.question.platform.transfer_s("cpu", "gpu", 2 * 8192)
    assert pass_s == pytest.approx(sum(parts_s) + costs["gpu"].one(LM_HEAD, 1, 64) + crossing_s)


def test_both_splits_err_together_and_intervals_are_as_wide_as_their_devices_err(on_a_3090):
    plain, drafting, on_cpu = on_a_3090.plain, on_a_3090.drafting, plain_beside(on_a_3090)
    widths = [one.prediction.relative_error for one in (plain, on_cpu)]
    assert 0.5 * widths[1] < widths[0] < widths[1], "the card, which errs less, takes a few percent of the time"
    cause = f"lane {on_a_3090.profile.lane(plain.pair.target).errs_as}"
    both = [one.prediction.errors[cause].half_width for one in (plain, drafting)]
    assert both[0] > 0.2, "the CPU's bandwidth, above all"
    assert abs(both[0] - both[1]) < 0.2 * both[0], "what is left of it in their ratio, drafting included"
    assert plain.tpot_s_low >= plain.least_s > 0.3 * plain.tpot_s


def test_a_split_over_equal_cards_errs_as_one_of_them_does():
    plan = planned("2xrtx3060", models=("qwen3-32b", "qwen3-0.6b"))
    split = next(filter(None, map(split_of, plan.ranking)))
    lane, profile = split.lane, plan.profile
    assert (split.cpu, [*split.layers]) == (None, ["gpu0", "gpu1"])
    whole = derived_profile(plan.question.platform, demand_of(plan.question, ["gpu0"]))
    [card] = whole.profile.lanes
    assert profile.lane(lane).errs_as == card.errs_as, "so that what both have is no difference of theirs"
    assert profile.lane(lane).relative_error == pytest.approx(card.relative_error)
    assert plan.costs[lane].facts(LAYER).relative_error == pytest.approx(
        whole.costs["gpu0"].facts(LAYER).relative_error
    )
    of_rows = Doubts(plan.question, plan.machine, plan.plain.tpot_s)._error_of_rows(lane, 4)
    assert 0 < of_rows == pytest.approx(Doubts(plan.question, whole, plan.plain.tpot_s)._error_of_rows("gpu0", 4))


def test_a_number_of_either_part_and_of_the_way_between_can_turn_the_answer(on_a_3090):
    fields = {one.field for one in on_a_3090.assumptions}
    assert {"gpu.memory_bytes_per_s", "cpu.memory_bytes_per_s", "cpu-gpu.latency_s"} <= fields


def test_its_draft_reads_verified_rows_again_too(on_a_3090):
    drafting, cost = on_a_3090.drafting, on_a_3090.costs["gpu"]
    rows, waits = drafting.schedule.num_rows, drafting.prediction.bottlenecks
    verifying_s = Prices(on_a_3090.profile, on_a_3090.costs).pass_s(drafting.pair.target, rows, 64)
    steps_s = drafting.schedule.fewest_draft_steps * cost.one(DRAFT_STEP, 1, 64)
    reads_s = cost.one(DRAFT_READS, rows, 64)
    rounds = drafting.prediction.num_rounds
    assert waits.target_verify / rounds == pytest.approx(verifying_s, rel=0.01)
    assert waits.draft / rounds == pytest.approx(steps_s + reads_s, rel=0.05)
    assert reads_s > 0.1 * steps_s


def test_every_card_is_filled_and_the_command_says_how():
    """Llama-3.1-70B in Q4_K_M on two cards of 12 GB: twenty layers of half a gigabyte on each."""
    two, one = (planned(name) for name in ("2xrtx3060", "rtx3060"))
    split = split_of(two.drafting)
    first, second = split.layers.values()
    assert list(split.layers) == ["gpu0", "gpu1"]
    assert first + second > 1.9 * split_of(one.drafting).layers["gpu"]
    assert two.plain.tpot_s < 0.8 * one.plain.tpot_s
    options = command(two, two.drafting)
    assert f" -ngl {first + second + 1} -ts {first},{second + 1} --spec-type" in options
    assert options.endswith(" -devd GPU0"), "the draft is on one of them"
    assert "--split-mode" not in options
    assert in_words(split) == f"{first} of 80 layers on gpu0, {second} on gpu1 and the rest on cpu"


@pytest.mark.parametrize(
    ("platform", "added", "fast", "slow"),
    [("rtx3090", "rtx3060", "gpu", "rtx3060"), ("rtx3060", "rtx3090", "rtx3090", "gpu")],
)
def test_a_card_of_another_kind_is_filled_after_the_faster_one(platform, added, fast, slow):
    """So the command has them too, with the devices to name: CUDA may list them in another order than a platform."""
    alone = planned("rtx3090", "q6_k", models=("qwen3-32b", "qwen3-0.6b"))
    beside = planned(with_devices(load_platform(platform), [added]), "q6_k", models=("qwen3-32b", "qwen3-0.6b"))
    split = split_of(beside.drafting)
    assert split.layers[fast] > 4 * split.layers[slow] > 0
    counts = f"-ts {split.layers[fast]},{split.layers[slow] + 1}"
    assert f"-ngl 65 {counts} -dev {fast.upper()},{slow.upper()} " in command(beside, beside.drafting)
    assert split.lane == f"{fast}({split.layers[fast]})/{slow}({split.layers[slow]})", "35 GB hold it"
    assert sum(split.layers.values()) == 64
    assert beside.plain.tpot_s < alone.plain.tpot_s / 2


@pytest.mark.parametrize(
    ("platform", "weights", "models"),
    [("rtx3060", "q4_k_m", ("llama-3.1-70b", "llama-3.1-8b")), ("2xrtx3060", "q6_k", ("qwen3-32b", "qwen3-8b"))],
)
def test_without_room_for_the_draft_the_target_alone_is_split(platform, weights, models):
    """Of 16 GB in bf16, which no card of 12 holds; a lookup takes no room."""
    asked = question(platform, weights=weights, models=models, lengths=(64, 24))
    large, looked_up = (
        plan_platform(replace(asked, draft=draft))
        for draft in (
            replace(asked.draft, weights="bf16"),
            StoredModel(shape=head_shape(LOOKUP, asked.target.shape), weights=weights, head=LOOKUP),
        )
    )
    assert large.plain.pair == looked_up.plain.pair
    assert large.plain.tpot_s == looked_up.plain.tpot_s
    assert all(split_of(one) is None for one in large.speculation)
    assert "-md" not in command(large, large.plain)


@pytest.mark.parametrize(("rate", "pays"), [(0.75, True), (0.3, False)])
def test_speculation_is_compared_with_plain_decoding_that_has_the_room_of_the_draft(rate, pays):
    """A draft of 5 GB takes the place of seventeen of 36 layers; where it does not pay for them it is left out."""
    asked = question("rtx3060", weights="q4_k_m", rate=rate, models=("qwen3-32b", "qwen3-8b"), lengths=(64, 24))
    lookup = StoredModel(shape=head_shape(LOOKUP, asked.target.shape), weights="q4_k_m", head=LOOKUP)
    plan, alone = (plan_platform(one) for one in (asked, replace(asked, draft=lookup)))
    assert plan.plain.tpot_s == alone.plain.tpot_s
    assert (plan.recommended is plan.drafting) is pays
    beside = next(one for one in plan.speculation if split_of(one))
    assert split_of(beside).num_left - split_of(plan.plain).num_left >= 15


def test_a_card_that_holds_a_few_layers_need_not_hold_the_draft_or_the_lm_head_too():
    """Of three cards the first has the draft and the last the `lm_head`."""
    three = with_devices(load_platform("rtx3090"), ["rtx3060"])
    three = with_devices(with_overrides(three, {"rtx3060.memory_bytes": "1.5 GB"}), ["rtx3060@pcie-3-x16"])
    plan = planned(three, models=("llama-3.1-70b", "llama-3.2-3b"))
    beside = next(one for one in plan.speculation if split_of(one))
    assert beside.pair.draft == "gpu"
    assert list(split_of(beside).layers) == ["gpu", "rtx3060", "rtx3060-2"]


def test_a_cpu_that_does_not_hold_the_target_holds_the_rest():
    small = planned(changes={"cpu.memory_bytes": "32 GB"})
    assert 1 / small.plain.tpot_s == pytest.approx(2.6, rel=0.2)
    assert {bool(split_of(one)) for one in small.ranking} == {True}
    assert in_words(split_of(planned("3xrtx-a6000", "bf16").plain)).startswith("26 of 80 layers on gpu0, 26 on gpu1")
    with pytest.raises(PlanError, match="fits nowhere"):
        planned(changes={"cpu.memory_bytes": "16 GB"})


def test_the_rest_is_on_the_fastest_cpu_that_has_room_for_it():
    """A second CPU is half as fast: it has the rest where the first one's 16 GB do not hold it."""
    machine = load_platform("rtx3090")
    data = machine.model_dump() | {"links": machine.model_dump()["links"]}
    slow = data["devices"]["cpu"] | {"memory_bytes_per_s": "45 GB/s", "memory_bytes": "64 GB"}
    data["devices"] |= {"slow": slow}
    data["links"] = (*data["links"], {"between": ["slow", "gpu"], "sheet": "pcie-3-x16"})
    both = Platform.model_validate(data)
    asked = {"weights": "q4_k_m", "models": MODELS, "lengths": (64, 24)}
    assert layer_split(question(both, **asked), has_draft=False).cpu == "cpu"
    assert layer_split(question(both, changes={"cpu.memory_bytes": "16 GB"}, **asked), has_draft=False).cpu == "slow"


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
    plan = plan_platform(replace(asked, draft=draft))
    assert plan.drafting.pair == LanePair.alone(plan.drafting.pair.target)
    options = command(plan, plan.drafting)
    assert " --spec-type draft-eagle3 -md DRAFT.gguf " in options
    assert options.endswith(" -devd GPU1")


@pytest.mark.parametrize(("target", "num_more"), [("qwen3.6-27b", 1), ("gemma-4-31b", 0)])
def test_a_head_in_the_targets_file_is_a_block_more_on_its_card(target, num_more):
    asked = question("rtx3090", weights="q8_0", models=(target, target), lengths=(64, 24))
    draft = StoredModel(shape=head_shape("mtp", asked.target.shape), weights="q8_0", head="mtp")
    plan = plan_platform(replace(asked, draft=draft))
    assert f"-ngl {split_of(plan.plain).layers['gpu'] + 1 + num_more}" in command(plan, plan.plain)
    assert (plan.plain.pair == plan.drafting.pair) is bool(num_more), "what is in the file is always there"


@pytest.mark.parametrize(
    ("platform", "target", "weights"), [("rtx3090", "qwen3-32b", "q5_k_m"), ("rtx4080", "qwen3-14b", "q8_0")]
)
def test_what_a_card_holds_but_for_embeddings_is_on_the_card(platform, target, weights):
    """They are in the memory of the CPU, where llama.cpp has them whatever is on cards; of two cards, too."""
    asked = question(platform, weights=weights, models=(target, "qwen3-0.6b"), lengths=(64, 24))
    plan, table_bytes = plan_platform(asked), asked.target.shape.table_bytes(weights)
    assert plan.plain.pair.target == "gpu"
    needs = {need.memory: need for need in plan.needs if need.pair == plan.plain.pair and need.is_plain}
    assert needs["cpu"].needed_bytes == pytest.approx(table_bytes)
    assert needs["gpu"].capacity_bytes - table_bytes < needs["gpu"].needed_bytes < needs["gpu"].capacity_bytes
    both = question("2xrtx3060", weights="q4_k_m", models=("qwen3-32b", "qwen3-0.6b"), lengths=(64, 24))
    split = layer_split(both, has_draft=False)
    held = {name: weights_bytes for name, (weights_bytes, _) in held_by(both, split).items()}
    assert held["cpu"] == both.target.shape.table_bytes("q4_k_m")
    assert sum(held.values()) == pytest.approx(both.target.shape.weight_bytes("q4_k_m"))
    no_room = {"cpu.memory_bytes": 0.5 * both.target.shape.table_bytes("q4_k_m")}
    with pytest.raises(PlanError, match="cpu has to hold"):
        planned("2xrtx3060", models=("qwen3-32b", "qwen3-0.6b"), changes=no_room)


def test_a_head_that_the_last_card_has_is_not_on_the_cpu():
    """So a CPU that runs four bits alone is not told to have the head's sixteen."""
    machine = load_platform("rtx3090")
    cpu = machine.devices["cpu"].model_copy(update={"weight_formats": ("int4",)})
    machine = machine.model_copy(update={"devices": machine.devices | {"cpu": cpu}})
    asked = question(machine, weights="q4_k_m", models=MODELS, lengths=(64, 24), changes={"cpu.memory_bytes": "32 GB"})
    head = StoredModel(shape=head_shape("eagle3", asked.target.shape), weights="bf16", head="eagle3")
    plan = plan_platform(replace(asked, draft=head))
    assert "cpu" in split_of(plan.drafting).devices
    assert not [one for one in advice(plan).warnings if "Data sheet of" in one]


def test_there_is_none_where_all_on_the_cpu_is_faster():
    assert not any(map(split_of, planned(changes={"gpu.memory_bytes_per_s": "20 GB/s"}).ranking))


@pytest.mark.parametrize(
    "asked",
    [{"models": ("qwen3-8b", "qwen3-0.6b")}, {"platform": "m4-max"}],
    ids=["it fits", "one memory"],
)
def test_there_is_none_where_nothing_has_to_be_split(asked):
    assert not any(map(split_of, planned(**asked).ranking))


def test_a_target_that_a_card_holds_without_its_draft_is_split_beside_it_alone():
    plan = planned("rtx4090", models=("qwen3-32b", "qwen3-8b"))
    assert plan.plain.pair.target == "gpu"
    beside = next(one for one in plan.speculation if one.pair.draft == "gpu")
    assert 0 < split_of(beside).num_left < 10
