"""A timed lane is the device that its profile says it is, whatever it is called."""

from pathlib import Path
from typing import get_args

import pytest

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
