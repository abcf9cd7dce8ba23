from dataclasses import replace

import pytest

from decoding.errors import ProfileError
from hwprofiles.latency_table import LatencyTable
from hwprofiles.model_shape import model_shape
from hwprofiles.overheads import Overhead
from hwprofiles.profile import LaneProfile
from sim.derived.assumption import Assumption
from sim.derived.carried_profile import carried_lane
from sim.derived.device_speed import DeviceSpeed
from sim.derived.roofline import RooflineCost, StoredModel

SHEET = (Assumption.of("gpu.memory_efficiency", 0.75, "guessed", "made up"),)
HERE = RooflineCost(
    device=DeviceSpeed(name="small", kind="gpu", bytes_per_s=1e11, flops=1e15, assumptions=SHEET),
    target=StoredModel(shape=model_shape("qwen3-8b"), weights="int4"),
    draft=StoredModel(shape=model_shape("qwen3-0.6b"), weights="int4"),
    exits=(18,),
)
TWICE = replace(HERE, device=replace(HERE.device, name="large", bytes_per_s=2e11, flops=2e15), _seconds={})


def table(*seconds):
    return LatencyTable(
        rows=(1, 4), contexts=(0, 512), seconds=(seconds, seconds), relative_error=0.02, source="measured"
    )


LANE = LaneProfile(
    name="gpu",
    device="small",
    dispatch_s=1e-4,
    layer=table(3e-3, 4e-3),
    lm_head=table(1e-3, 1e-3),
    exit={18: table(2e-3, 2e-3)},
    overheads={
        "rollout_start": Overhead(seconds=2e-3),
        "branch_step": Overhead(seconds=3e-3, relative_error=0.2),
        "features": Overhead(seconds=4e-3, relative_error=0.1),
        "features:eagle": Overhead(seconds=1e-3),
        "draft_round": Overhead(seconds=5e-3),
    },
    draft_step=table(5e-3, 6e-3),
    heads={"eagle": table(1e-3, 1e-3)},
    relative_error=0.03,
)


def test_a_device_twice_as_fast_halves_every_time_and_keeps_what_the_measurement_knows():
    carried = carried_lane(LANE, HERE, TWICE, name="large")
    for kind in ("layer", "lm_head", "draft_step"):
        halves = [[time_s / 2 for time_s in line] for line in getattr(LANE, kind).seconds]
        assert [list(line) for line in getattr(carried, kind).seconds] == [pytest.approx(line) for line in halves]
    assert carried.exit[18].seconds[0] == pytest.approx((1e-3, 1e-3))
    assert carried.dispatch_s == LANE.dispatch_s
    assert "carried from small to large" in carried.layer.source


def test_overheads_go_with_the_tables_of_who_does_the_work():
    """Starting a rollout and stepping branches is the draft's, replying states the target's, and a round nobody's."""

    def seconds(**update):
        carried = carried_lane(LANE.model_copy(update=update), HERE, TWICE, name="large")
        assert [one.relative_error for one in carried.overheads.values()] == [0, 0.2, 0.1, 0, 0]
        return [one.seconds for one in carried.overheads.values()]

    assert seconds() == pytest.approx([1e-3, 1.5e-3, 2e-3, 5e-4, 5e-3])
    assert seconds(draft_step=None) == pytest.approx([0, 0, 2e-3, 5e-4, 5e-3])
    assert seconds(layer=None) == pytest.approx([1e-3, 1.5e-3, 0, 0, 5e-3])


def test_the_same_device_changes_nothing_but_how_sure_one_is():
    carried = carried_lane(LANE, HERE, HERE, name="gpu")
    assert carried.layer.seconds == LANE.layer.seconds
    assert carried.relative_error > LANE.relative_error
    assert carried.layer.relative_error > LANE.layer.relative_error


def test_what_no_roofline_knows_does_not_come_along():
    assert carried_lane(LANE, HERE, TWICE, name="large").heads == {}


def test_other_models_are_refused():
    other = replace(TWICE, draft=StoredModel(shape=model_shape("qwen3-1.7b"), weights="int4"))
    with pytest.raises(ProfileError, match="the models it was measured with"):
        carried_lane(LANE, HERE, other, name="large")
