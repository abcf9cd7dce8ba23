"""Layers of a target that is too large for a card, on the card and on the CPU."""

import pytest

from planner.platform_plan.partial_offload import partial_offload
from planner.platform_plan.platform_plan import plan_platform
from tests.planner.platform_plan.conftest import question

MODELS = ("llama-3.1-70b", "llama-3.2-1b")


def planned(platform="rtx3090", weights="q4_k_m", **asked):
    return plan_platform(question(platform, weights=weights, **{"models": MODELS, "lengths": (64, 24)} | asked))


@pytest.fixture(scope="module")
def on_a_3090():
    return planned()


def test_as_many_layers_are_on_the_card_as_it_holds_beside_the_draft(on_a_3090):
    split = partial_offload(on_a_3090)
    assert (split.card, split.cpu, split.of_layers) == ("gpu", "cpu", 80)
    assert 38 <= split.num_layers <= 46, "as people report of 24 GB and 40 GB of weights"
    larger = partial_offload(planned(changes={"gpu.memory_bytes": "32 GB"}))
    assert larger.num_layers > split.num_layers
    assert larger.plain_tpot_s < split.plain_tpot_s


def test_it_is_as_fast_as_both_parts_and_speculation_gains_there(on_a_3090):
    split = partial_offload(on_a_3090)
    share = 1 - split.num_layers / split.of_layers
    assert share * on_a_3090.plain.tpot_s < split.plain_tpot_s < on_a_3090.plain.tpot_s
    assert split.num_drafted > 0
    assert split.tpot_s < split.plain_tpot_s
    assert f"-ngl {split.num_layers} --spec-type draft-simple" in split.options
    assert f"--spec-draft-n-max {split.num_drafted}" in split.options
    assert f"Faster than all of the table: {split.num_layers} of 80 layers on gpu and the rest on cpu" in split.in_words
    assert split.tpot_s < min(one.tpot_s for one in on_a_3090.ranking)


def test_there_is_none_where_all_on_the_cpu_is_faster():
    assert partial_offload(planned(changes={"gpu.memory_bytes_per_s": "20 GB/s"})) is None


@pytest.mark.parametrize(
    "asked",
    [{"models": ("qwen3-8b", "qwen3-0.6b")}, {"platform": "m4-max"}],
    ids=["it fits", "one memory"],
)
def test_there_is_none_where_nothing_has_to_be_split(asked):
    assert partial_offload(planned(**asked)) is None
