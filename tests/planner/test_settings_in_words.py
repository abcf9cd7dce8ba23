"""Where models run, in words: a lane's device is said where its name does not say it."""

import pytest

from decoding.schedule import Schedule
from planner.settings_in_words import lanes
from tests.sim.worlds.machines import lane, machine


@pytest.mark.parametrize(
    ("name", "device", "cores", "words"),
    [
        ("cpu0", "cpu", (0,), "lane cpu0 (core 0)"),
        ("left", "cpu", (0, 1), "lane left (cpu, 2 cores)"),
        ("openvino:CPU", "openvino:CPU", (0, 1), "lane openvino:CPU (2 cores)"),
        ("openvino:CPU@1", "openvino:CPU", (1,), "lane openvino:CPU@1 (core 1)"),
        ("cuda:0", "cuda:0", (), "lane cuda:0"),
        ("gpu", "an H100", (), "lane gpu (an H100)"),
    ],
)
def test_a_lane_is_described_once(name, device, cores, words) -> None:
    there = lane(name).model_copy(update={"device": device, "cores": cores})
    plain = Schedule(method="autoregressive", target_lane=name)
    assert lanes(plain, machine(there)) == f"The target runs on {words}."
