from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import PlanError
from hwprofiles.model_shape import model_shape
from hwprofiles.platform import Platform, load_platform
from planner.platform_plan.advice import advice
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import needs_of, places_of
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import assumed_question
from sim.derived.roofline import StoredModel


def asked(platform, target, draft, *, weights="bf16", draft_weights=None):
    return assumed_question(
        platform,
        StoredModel(shape=model_shape(target), weights=weights),
        StoredModel(shape=model_shape(draft), weights=draft_weights or weights),
        num_prompt_tokens=64,
        num_new_tokens=8,
    )


def cards(*memories_bytes, groups=None):
    """Linked cards of these memories."""
    names = [f"gpu{number}" for number in range(len(memories_bytes))]
    return Platform.model_validate(
        {
            "name": "some cards",
            "devices": {
                name: {"sheet": "h100-sxm", "memory_bytes": size}
                for name, size in zip(names, memories_bytes, strict=True)
            },
            "links": [
                {"between": [one, other], "sheet": "nvlink-4"}
                for index, one in enumerate(names)
                for other in names[index + 1 :]
            ],
            "groups": groups or {},
        }
    )


def pairs_that_fit(question):
    """Every two lanes that share no device, or are one lane, or a group with its first device."""
    platform = question.platform
    lanes = [*platform.devices, *platform.groups]
    for target, draft in product(lanes, lanes):
        members, others = platform.members(target), platform.members(draft)
        pair = LanePair(target, draft, in_turn=target == draft or others == members[:1])
        if (pair.in_turn or not set(members) & set(others)) and all(one.fits for one in needs_of(question, pair)):
            yield pair


SIZES = st.sampled_from([1e9, 4e9, 8e9, 1.2e10, 2e10, 4e10, 8e10])
GROUPS = st.sampled_from(
    [{}, {"pair": ["gpu0", "gpu1"]}, {"pair": ["gpu1", "gpu2"]}, {"all": ["gpu0", "gpu1", "gpu2"]}]
)


@given(
    st.tuples(SIZES, SIZES, SIZES),
    GROUPS,
    st.sampled_from(["qwen3-0.6b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"]),
)
def test_a_pair_that_fits_somewhere_has_a_place_and_the_target_every_lane_that_holds_it(sizes, groups, target):
    question = asked(cards(*sizes, groups=groups), target, "qwen3-1.7b")
    platform = question.platform
    alone = [
        lane
        for lane in (*platform.devices, *platform.groups)
        if all(one.fits for one in needs_of(question, LanePair(lane, lane, in_turn=True), alone=True))
    ]
    if not alone:
        with pytest.raises(PlanError, match="fits nowhere"):
            places_of(question)
        return
    found = places_of(question)
    assert bool(found.pairs) == any(True for _ in pairs_that_fit(question))
    assert set(found.alone) <= set(alone)
    assert {len(platform.members(lane)) for lane in found.alone} == {len(platform.members(lane)) for lane in alone}
    assert set(found.pairs) <= {*pairs_that_fit(question), *(pair for pair in found.pairs if pair.is_two_streams)}


def test_a_draft_that_fits_next_to_the_cpu_only_is_ranked_there_and_plain_decoding_on_both():
    question = asked(load_platform("rtx4090+cpu"), "qwen3-32b", "qwen3-4b", weights="int4", draft_weights="bf16")
    plan = plan_platform(question)
    beside = LanePair("gpu(54) + cpu(10)", "gpu", in_turn=True)
    assert {one.pair for one in plan.speculation} == {LanePair("gpu", "cpu"), beside}
    assert {one.pair.target for one in plan.ranking if not one.schedule.draft_lane} == {"gpu", "cpu"}
    assert any("both on gpu" in reason and "too little" in reason for reason in plan.left_out)
    assert "plain decoding on gpu: gpu has to hold" in advice(plan).text
    told = [reason for reason in advice(plan).why if "too little" in reason]
    assert [reason.partition(" has to hold ")[0] for reason in told] == ["both on gpu: gpu"]
    paying = plan_platform(asked(cards(7e10, 7e10), "qwen3-32b", "qwen3-1.7b"))
    assert paying.pays == "yes"
    assert any("both on gpu0" in reason for reason in paying.left_out)
    assert not any("too little" in reason for reason in advice(paying).why)


def test_a_draft_that_fits_nowhere_leaves_plain_decoding():
    plan = plan_platform(asked(cards(3.6e10), "qwen3-14b", "qwen3-8b"))
    assert (plan.pays, plan.drafting) == ("no", None)
    assert "no drafting" in advice(plan).headline
    assert advice(plan).next_step[0].startswith("leave the draft out")


def test_a_target_that_fits_on_slow_lanes_only_with_its_draft_is_ranked_there():
    """Where no faster place can speculate, a slow one is asked about all the same."""
    platform = load_platform("rtx4090+cpu")
    data = platform.model_dump()
    data["devices"]["cpu"]["memory_bytes_per_s"] = {"value": 1e9, "status": "guessed", "source": "by hand"}
    data["devices"]["gpu"]["memory_bytes"] = {"value": 2.1e10, "status": "guessed", "source": "by hand"}
    plan = plan_platform(asked(Platform.model_validate(data), "qwen3-32b", "qwen3-8b", weights="int4"))
    assert plan.speculation
