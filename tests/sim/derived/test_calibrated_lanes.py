"""A timed lane is the device that its profile says it is, whatever it is called."""

from pathlib import Path
from typing import get_args

import pytest

from costs.prices import Prices
from hwprofiles.profile import load_profile
from hwprofiles.sheets import DeviceKind
from sim.derived.calibrated_lanes import calibrated_platform

PROFILE = load_profile(Path(__file__).parents[3] / "benchmarks" / "results" / "demos" / "1" / "profile.yaml")


@pytest.mark.parametrize("kind", get_args(DeviceKind))
def test_what_a_lane_is_does_not_depend_on_its_name(kind):
    name = "npu-of-cuda"
    lane = PROFILE.lanes[0].model_copy(update={"name": name, "kind": kind})
    alone = PROFILE.model_copy(update={"lanes": (lane,), "links": (), "contention": ()})
    assert calibrated_platform(alone).device(name).kind == kind


def test_weights_of_other_models_are_read_as_fast_as_with_the_shortest_cache_that_was_timed():
    """What longer caches take is no part of a bandwidth: it is priced by `cache_efficiency`."""
    lane, device = PROFILE.lanes[0], calibrated_platform(PROFILE).device(PROFILE.lanes[0].name)
    num_bytes = PROFILE.num_layers * lane.layer.bytes_per_call + lane.lm_head.bytes_per_call
    short_s = Prices(PROFILE).pass_s(lane.name, 1, float(min(lane.layer.contexts)))
    assert device.memory_cap_bytes_per_s.value == pytest.approx(num_bytes / short_s)
