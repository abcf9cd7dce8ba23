"""Lanes of which several devices have layers each: their names, what each has, and llama.cpp's options."""

import pytest

from decoding.errors import ProfileError
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform import load_platform

SPLITS = {
    "gpu(45) + cpu(35)": LayerSplit({"gpu": 45}, "cpu", 35),
    "gpu0(30)/gpu1(6) + cpu(24 experts)": LayerSplit({"gpu0": 30, "gpu1": 6}, "cpu", 0, 24),
    "gpu(80) + cpu(14, 80 experts)": LayerSplit({"gpu": 80}, "cpu", 14, 80),
    "rtx3090(40)/gpu(24)": LayerSplit({"rtx3090": 40, "gpu": 24}),
    "cuda:0(3) + openvino:CPU(4)": LayerSplit({"cuda:0": 3}, "openvino:CPU", 4),
}


@pytest.mark.parametrize(("lane", "split"), SPLITS.items())
def test_the_name_of_a_lane_tells_its_split(lane, split):
    assert split.lane == lane
    assert LayerSplit.of(lane) == split


@pytest.mark.parametrize("lane", ["gpu", "gpus", "cuda:0", "openvino:CPU@0", "gpu#2", "a+b(2)", "a/b", "a(1) b + c"])
def test_other_lanes_are_none(lane):
    assert LayerSplit.of(lane) is None


def test_a_platform_knows_the_devices_of_a_split():
    platform = load_platform("rtx3090")
    assert platform.members("gpu(45) + cpu(35)") == ("gpu", "cpu")
    assert not platform.are_apart("gpu(45) + cpu(35)", "gpu")
    with pytest.raises(ProfileError, match="has no device 'rtx3060'"):
        platform.members("rtx3060(45) + cpu(35)")


def test_experts_are_counted_from_the_first_layer_that_has_any():
    """Of 46 layers the first three are dense; the experts of ten of the others are on the CPU."""
    split = LayerSplit({"one": 20, "other": 26}, "cpu", 0, 10)
    assert split.experts_on(3) == {"one": 7, "other": 26, "cpu": 10}
    assert split.apart_on(3) == {"one": 10, "other": 0}
    assert split.options(3) == "-ngl 47 -ts 20,27 --n-cpu-moe 13"
    assert split.options(3, num_more=1) == "-ngl 48 -ts 20,28 --n-cpu-moe 13"


def test_layers_of_the_cpu_have_their_experts_there():
    split = LayerSplit({"gpu": 80}, "cpu", 14, 80)
    assert split.experts_on() == {"gpu": 0, "cpu": 94}
    assert split.apart_on() == {"gpu": 80}
    assert split.options() == "-ngl 81 --n-cpu-moe 94"
    assert [split.share_of(one) for one in split.devices] == [
        "80 of 94 layers",
        "14 of 94 layers and the experts of 80",
    ]
