"""Batches of a target that is too large for a card: caches take the room of layers there."""

from dataclasses import replace

from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.models.head_shapes import LOOKUP, head_shape
from planner.plan_engines import engines_of_batch
from planner.platform_plan.batches import plan_batches
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import plan_platform
from sim.derived.roofline import StoredModel
from tests.planner.platform_plan.conftest import question
from tests.planner.platform_plan.splits import MODELS, planned


def test_in_a_batch_caches_take_the_room_of_layers():
    """Eight sequences of 2,072 tokens have 5.4 GB of keys and values, those of ten of eighty layers and a half."""
    plan = planned(lengths=(2048, 24))
    one, several = plan_batches(plan, [1, 8]).choices.values()
    alone, beside = (LayerSplit.of(choice.plain.schedule.target_lane) for choice in (one, several))
    assert 4 <= alone.layers["gpu"] - beside.layers["gpu"] <= 6, "each layer has its own caches there, too"
    assert several.plain.tokens_per_s > 2 * one.plain.tokens_per_s
    (engine,) = engines_of_batch(plan, several.plain)
    assert f"-ngl {beside.layers['gpu'] + 1}" in engine.options
    drafted = LayerSplit.of(several.drafting.schedule.target_lane)
    assert drafted.layers["gpu"] < beside.layers["gpu"]
    assert several.pair == LanePair(drafted.lane, "gpu", in_turn=True)


def test_a_batch_that_no_split_has_room_for_is_left_out():
    asked = question("rtx3090", weights="q4_k_m", models=MODELS, changes={"cpu.memory_bytes": 32e9}, lengths=(512, 24))
    lookup = StoredModel(shape=head_shape(LOOKUP, asked.target.shape), weights="q4_k_m", head=LOOKUP)
    for one in (asked, replace(asked, draft=lookup)):
        found = plan_batches(plan_platform(one), [1, 64])
        assert [*found.choices] == [1]
        assert "batches of 64: no split of layers has room for 64 sequences" in found.left_out
        assert "batches of 64: no plain decoding to compare with" in found.left_out


def test_a_target_that_a_card_holds_beside_one_cache_is_split_in_a_batch():
    """At 32 sequences of 640 tokens the card lacks 2.2 GB: few layers leave it, not all of them."""
    plan = planned(models=("qwen3-32b", "qwen3-0.6b"), lengths=(512, 128))
    assert plan.plain.schedule.target_lane == "gpu"
    one, several = plan_batches(plan, [1, 32]).choices.values()
    split = LayerSplit.of(several.plain.schedule.target_lane)
    assert 0 < split.num_left <= 8
    assert several.plain.tokens_per_s > one.plain.tokens_per_s
    assert LayerSplit.of(several.pair.target).num_left > split.num_left, "the draft has room there, too"


def test_why_a_batch_has_no_draft_beside_its_split_is_told():
    """Of 5 GB beside the caches of 32 sequences, which take what a card of 12 GB has."""
    asked = question("rtx3060", weights="q4_k_m", models=("qwen3-32b", "qwen3-8b"), lengths=(2048, 24))
    found = plan_batches(plan_platform(asked), [1, 32])
    assert LayerSplit.of(found.choices[1].pair.target)
    told = "batches of 32, draft of Qwen3-8B in q4_k_m: no split of layers has room beside it"
    assert told in found.left_out
