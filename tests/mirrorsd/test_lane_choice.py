"""Lanes by device, by name, or of a profile; and what of a pair stays behind where they cannot run it."""

from pathlib import Path

import pytest

from decoding.errors import ConfigError
from hwprofiles.host import lanes_of
from hwprofiles.profile import load_profile
from mirrorsd.lane_choice import all_lane_specs, device_lanes, profile_lanes

PROFILE = Path(__file__).parents[1] / "golden" / "profile.yaml"


def on(device, *, name=None):
    """A profile whose first lane is said to be on a device."""
    profile = load_profile(PROFILE)
    first = profile.lanes[0]
    lane = first.model_copy(update={"device": device, "name": name or first.name, "cores": ()})
    return profile.model_copy(update={"lanes": (lane,)})


def test_a_profile_of_a_device_never_runs_on_another_one():
    assert [spec.device for spec in profile_lanes(on("generic-cpu"))] == ["cpu"]
    with pytest.raises(ConfigError, match="lane 'cpu0' is on cuda:0 in the profile, and its name says cpu"):
        profile_lanes(on("cuda:0"))
    with pytest.raises(ConfigError, match="device 'cuda:7' is not there: this machine has no such device"):
        profile_lanes(on("cuda:7", name="cuda:7"))


def test_lanes_by_default_are_those_that_compute_with_the_form_of_weights():
    assert {spec.device for spec in device_lanes(None, "bfloat16")} == {"cpu"}
    assert {spec.device for spec in device_lanes(None, "int8")} == {"openvino:CPU"}


def test_a_schedule_may_name_a_lane_of_any_device_that_is_there():
    names = [spec.name for spec in all_lane_specs()]
    assert {lane.name for device in ("cpu", "openvino:CPU") for lane in lanes_of(device)} <= set(names)
    assert len(names) == len(set(names))
