"""Two equal chips side by side, of which only the first has a CPU that could run a model."""

import pytest

from hwprofiles.platform import Platform, load_platform
from planner.platform_plan.changed_numbers.moved_question import MovedQuestion
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import plan_platform
from tests.planner.platform_plan.test_places import asked

FIRST, SECOND = LanePair("gpu0", "npu0"), LanePair("gpu1", "npu1")


@pytest.fixture(scope="module")
def plan():
    eight = load_platform("m2-ultra-x8").model_dump(exclude_none=True)
    kept = {"gpu0", "npu0", "gpu1", "npu1", "cpu0"}
    two = {
        "devices": {name: device for name, device in eight["devices"].items() if name in kept},
        "memory_pools": {name: eight["memory_pools"][name] for name in ("memory0", "memory1")},
        "links": [link for link in eight["links"] if kept >= set(link["between"])],
        "groups": {},
    }
    return plan_platform(asked(Platform.model_validate(eight | two), "qwen3-8b", "qwen3-0.6b", weights="int4"))


def test_of_placements_that_differ_in_names_alone_the_first_is_ranked_and_the_answer_names_the_others(plan):
    places = {one.pair for one in plan.ranking}
    assert FIRST in places
    assert SECOND not in places
    assert plan.equal_to(FIRST) == [SECOND]
    assert "target on gpu1, draft on npu1: equal to target on gpu0, draft on npu0" in plan.left_out
    assert LanePair("gpu0", "npu1") in places  # over a cable
    assert LanePair("gpu1", "cpu0") in places
    assert LanePair.alone("gpu1") not in places


def test_what_is_left_of_a_lane_that_is_equal_to_another_is_asked_about_too(plan):
    ways = {str(way) for way in MovedQuestion(plan).standing().times_s}
    assert "target on gpu1, draft on cpu0, at once" in ways


def test_a_number_of_one_of_two_equal_devices_turns_them_into_different_ones(plan):
    moved = MovedQuestion(plan)
    assert SECOND not in {way.pair for way in moved.standing({"devices:m2-ultra-ane.memory_efficiency": 0.5}).times_s}
    ways = moved.standing({"npu1.memory_efficiency": 0.5}).times_s
    drafting = {way.pair: time_s for way, time_s in ways.items() if way.kind == "at once"}
    assert drafting[SECOND] < drafting[FIRST]
