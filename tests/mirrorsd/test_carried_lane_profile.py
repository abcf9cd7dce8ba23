"""A lane that was calibrated here, on a device that is not: the same software, by what sheets say of both devices."""

import pytest

import mirrorsd
from decoding.errors import ProfileError
from hwprofiles.overheads import Overhead
from hwprofiles.platform import load_platform
from hwprofiles.profile import LatencyTable, Profile
from sim.derived.derived_profile import speed_on
from tests.planner.synthetic import acceptance_record
from tests.sim.worlds.machines import lane

HERE, THERE = "cpu-2core.cpu0", "lunar-lake.cpu"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))


def table(first_s: float, last_s: float) -> LatencyTable:
    seconds = ((first_s, first_s), (last_s, last_s))
    return LatencyTable(rows=(1, 32), contexts=(0, 256), seconds=seconds, relative_error=0.02, source="measured")


def profile(layer_s: float = 5e-2, *, dtype: str = "bfloat16") -> Profile:
    """A lane that has a shape as its target, and another as its draft."""
    parts = {"layer": table(layer_s, 2 * layer_s), "lm_head": table(5e-2, 8e-2), "draft_step": table(0.1, 0.2)}
    measured = lane("here").model_copy(
        update=parts | {"device": "openvino:CPU", "exit": {}, "overheads": {"branch_step": Overhead(seconds=1e-3)}}
    )
    return Profile(
        host={"cpu_model": "this one"},
        target="shape:qwen3-1.7b",
        drafter="shape:qwen3-0.6b",
        dtype=dtype,
        num_layers=28,
        lanes=(measured,),
        relative_error=0.01,
    )


def test_times_change_by_what_both_devices_read_and_are_less_certain() -> None:
    before = profile()
    found = mirrorsd.carry(before, "here", measured_on=HERE, to=THERE)
    speeds = [speed_on(load_platform(name), device).bytes_per_s for name, device in (("cpu-2core", "cpu0"),
              ("lunar-lake", "cpu"))]  # fmt: skip
    (carried,) = found.lanes
    assert carried.layer.at(1, 0) / before.lanes[0].layer.at(1, 0) == pytest.approx(speeds[0] / speeds[1], rel=0.02)
    assert carried.relative_error > before.lanes[0].relative_error
    assert carried.layer.relative_error > 0.1
    assert f"carried from {HERE} to {THERE}" in carried.layer.source
    assert (
        found.notes[-1] == f"Lane here, measured on {HERE}, carried to {THERE} by data sheets: nothing was timed there."
    )
    assert found.host == {"carried_to": THERE, "measured_on": before.host}


def test_it_stays_a_lane_of_the_same_software_so_that_its_records_hold() -> None:
    found = mirrorsd.carry(profile(), "here", measured_on=HERE, to=THERE)
    assert found.lanes[0].device == "openvino:CPU"
    assert found.lanes[0].name == THERE
    assert (found.target, found.drafter, found.dtype, found.num_layers) == (
        "shape:qwen3-1.7b",
        "shape:qwen3-0.6b",
        "bfloat16",
        28,
    )


def test_on_the_same_device_times_stay_and_schedules_can_be_searched() -> None:
    before = profile()
    found = mirrorsd.carry(before, "here", measured_on=HERE, to="cpu-2core.cpu1")
    assert found.lanes[0].draft_step.seconds == before.lanes[0].draft_step.seconds
    record = acceptance_record(num_prompts=2, num_tokens=20)
    prediction = mirrorsd.predict(
        mirrorsd.Schedule(method="autoregressive", target_lane="cpu-2core.cpu1"), found, record, replayed=True
    )
    assert prediction.tpot_s == pytest.approx(28 * 5e-2 + 5e-2, rel=0.01)


def test_the_draft_that_ships_has_some_of_the_targets_layers_and_of_its_vocabulary(monkeypatch) -> None:
    monkeypatch.delenv("MIRRORSD_CACHE")
    shipped = profile().model_copy(
        update={"target": "smollm2-135m-instruct", "drafter": "smollm2-135m-draft4", "num_layers": 30}
    )
    (carried,) = mirrorsd.carry(shipped, "here", measured_on=HERE, to=THERE).lanes
    assert carried.draft_step.at(1, 0) < shipped.lanes[0].draft_step.at(1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane": "nowhere"}, "has no lane 'nowhere'"),
        ({"to": "lunar-lake"}, "'lunar-lake' names no device: a platform and a device do, such as lunar-lake.cpu"),
        ({"to": "lunar-lake.tpu"}, "no device 'tpu'"),
        ({"to": "saturn.cpu"}, "no platform is called 'saturn'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(change, message) -> None:
    asked = {"lane": "here", "measured_on": HERE, "to": THERE} | change
    with pytest.raises(ProfileError, match=message):
        mirrorsd.carry(profile(), asked.pop("lane"), **asked)


def test_a_lane_that_reads_faster_than_the_device_was_measured_elsewhere() -> None:
    with pytest.raises(ProfileError, match="'here' reads .* GB/s, and cpu-2core.cpu0 by its sheet at most 17.1"):
        mirrorsd.carry(profile(layer_s=1e-3), "here", measured_on=HERE, to=THERE)


def test_weights_without_a_roofline_are_carried_nowhere() -> None:
    with pytest.raises(ProfileError, match="weights in float32 are carried nowhere: known are bfloat16, int8, int4"):
        mirrorsd.carry(profile(dtype="float32"), "here", measured_on=HERE, to=THERE)
