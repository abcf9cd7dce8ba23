from pathlib import Path

import pytest

from decoding.errors import ConfigError
from decoding.trace import Trace
from hwprofiles.host import lanes_of
from hwprofiles.profile import load_profile
from mirrorsd.text_engine import Answer, all_lane_specs, lane_specs

PROFILE = Path(__file__).parents[1] / "golden" / "profile.yaml"


def on(device, *, name=None):
    """A profile whose first lane is said to be on a device."""
    profile = load_profile(PROFILE)
    first = profile.lanes[0]
    lane = first.model_copy(update={"device": device, "name": name or first.name, "cores": ()})
    return profile.model_copy(update={"lanes": (lane,)})


def test_an_answer_is_shown_as_its_text():
    """A notebook prints what a cell ends with; the trace of a text is thousands of spans."""
    answer = Answer(text="Blue.", tokens=(1,) * 1000, trace=Trace(world="measured"))
    assert repr(answer) == "Answer(text='Blue.')"


def test_a_profile_of_a_device_never_runs_on_another_one():
    assert [spec.device for spec in lane_specs(on("generic-cpu"))] == ["cpu"]
    with pytest.raises(ConfigError, match="lane 'cpu0' is on cuda:0 in the profile, and its name says cpu"):
        lane_specs(on("cuda:0"))
    with pytest.raises(ConfigError, match="device 'cuda:7' is not there: this machine has no such device"):
        lane_specs(on("cuda:7", name="cuda:7"))


def test_lanes_by_default_are_those_that_compute_with_the_form_of_weights():
    assert {spec.device for spec in lane_specs()} == {"cpu"}
    for form in ("int8", "int4"):
        assert {spec.device for spec in lane_specs(dtype=form)} == {"openvino:CPU"}


def test_a_schedule_may_name_a_lane_of_any_device_that_is_there():
    names = [spec.name for spec in all_lane_specs()]
    assert {lane.name for device in ("cpu", "openvino:CPU") for lane in lanes_of(device)} <= set(names)
    assert len(names) == len(set(names))
