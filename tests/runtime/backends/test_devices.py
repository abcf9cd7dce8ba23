"""A lane is on the device that its name says, or is refused with the reason."""

import importlib.util
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from runtime.backends import devices
from runtime.backends.eager import torch_threads
from runtime.backends.lane_device import CORES, Device
from runtime.lanes.lane import LaneSpec
from runtime.lanes.lane_set import LaneSet


@pytest.mark.parametrize(
    ("lane", "device", "backend", "kind"),
    [
        ("cpu0", "cpu", "torch", "cpu"),
        ("cpu0+1", "cpu", "torch", "cpu"),
        ("big", "cpu", "torch", "cpu"),
        ("openvino:CPU", "openvino:CPU", "openvino:CPU", "cpu"),
        ("openvino:CPU@1", "openvino:CPU", "openvino:CPU", "cpu"),
        ("openvino:CPU@0+1", "openvino:CPU", "openvino:CPU", "cpu"),
        ("openvino:GPU.1", "openvino:GPU.1", "openvino:GPU", "gpu"),
        ("openvino:NPU", "openvino:NPU", "openvino:NPU", "npu"),
        ("cuda:0", "cuda:0", "cuda", "gpu"),
        ("cuda:1#2", "cuda:1", "cuda", "gpu"),
        ("cuda:1-2ranks", "cuda:1", "cuda", "gpu"),
    ],
)
def test_a_lanes_name_says_its_device_and_back_end_and_torchs_cores_alone_run_streams(lane, device, backend, kind):
    found = Device.of_lane(lane)
    assert (found.name, found.backend, found.kind) == (device, backend, kind)
    assert found.has_readable_cache == (backend == "torch")


@pytest.mark.parametrize(
    "lane",
    [
        *("cuda:", "cuda:x", "openvino:cpu", "openvino:CPU@", "npu:0", "openvino:CPU@0@1"),
        *("cpu0-1000ranks", "openvino:CPU-1000ranks", f"cpu0-{'9' * 5000}ranks"),
    ],
)
def test_a_name_with_a_colon_that_says_none_is_refused(lane):
    with pytest.raises(ConfigError, match="names no device; names are such as cpu0, openvino:CPU"):
        LaneSpec(name=lane)


def test_ranks_have_gpus_that_follow_each_other_and_share_cores():
    assert [Device.of_lane("cuda:1-2ranks").of_rank(rank).own_name for rank in (0, 1)] == ["cuda:1", "cuda:2"]
    assert Device.of_lane("big-2ranks").of_rank(1) == CORES


def test_what_a_device_computes_with_is_known_of_those_that_are_there():
    asked = [("cpu", "float32"), ("cpu", "int8"), ("openvino:CPU", "int8"), ("openvino:NPU", "int8"), ("tpu", "int8")]
    assert [form in devices.status_of(name).forms for name, form in asked] == [True, False, True, False, False]


def test_every_device_has_lanes_and_forms_or_a_reason():
    found = devices.devices()
    assert {"cpu", "openvino:CPU"} <= {device.name for device in found}
    for device in found:
        is_there = device.missing is None
        assert bool(device.forms) == bool(device.lanes) == is_there
        assert is_there or device.missing


def forget():
    """Have devices looked for again."""
    devices.devices.cache_clear()
    devices._openvino_devices.cache_clear()


def only(monkeypatch, *there):
    monkeypatch.setattr(devices, "devices", lambda: there)
    monkeypatch.setattr(devices, "_openvino_devices", lambda: there)


def test_a_device_that_is_missing_is_refused_by_name_with_the_reason_and_those_that_are_there(monkeypatch):
    cpu = devices.DeviceStatus(name="cpu", description="", forms=("float32",), lanes="all")
    gone = devices.DeviceStatus(name="openvino:NPU", description="", missing="no driver")
    only(monkeypatch, cpu, gone)
    with pytest.raises(ConfigError, match=r"device 'openvino:NPU' is not there: no driver\. Devices here: cpu$"):
        LaneSpec(name="openvino:NPU")
    with pytest.raises(ConfigError, match="'cuda:3' is not there: this machine has no such device"):
        LaneSpec(name="cuda:3#1")


def test_without_the_package_openvinos_devices_say_so(monkeypatch):
    forget()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reasons = {device.name: device.missing for device in devices.devices()}
    forget()
    assert reasons["openvino:CPU"] == reasons["openvino:NPU"] == "the package openvino is not installed"
    assert reasons["cpu"] is None


def test_weights_of_a_form_that_a_lane_does_not_compute_with_are_refused(tmp_path):
    specs = [LaneSpec(name="cpu0"), LaneSpec(name="cpu1", dtype="int8")]
    lanes = LaneSet(specs, target=tmp_path, drafter=None, exits=None, dtype="bfloat16")
    with pytest.raises(ConfigError, match="lane 'cpu1' does not compute with int8; it does with bfloat16, float32"):
        lanes.load_target("cpu1")


@pytest.mark.parametrize(("value", "is_there"), [("1", True), ("0", False), ("", False)])
def test_an_npu_that_is_the_cpu_says_so(monkeypatch, value, is_there):
    monkeypatch.setenv("MIRRORSD_NPU_ON_CPU", value)
    forget()
    [npu] = [device for device in devices.devices() if device.name == "openvino:NPU"]
    forget()
    assert ("on the CPU (MIRRORSD_NPU_ON_CPU)" in npu.description) == is_there
    assert ("float32" in npu.forms) == is_there
    assert is_there or npu.missing


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_cpu_that_computes_in_float32_in_place_of_bfloat16_says_so(monkeypatch, has_bfloat16):
    monkeypatch.setattr("runtime.backends.openvino.buckets.cpu_computes_bfloat16", lambda: has_bfloat16)
    forget()
    cpu = devices.status_of("openvino:CPU")
    forget()
    assert ("take the time and memory of float32" in cpu.description) != has_bfloat16
    assert "bfloat16" in cpu.forms


class Gpus:
    """What torch says of two GPUs, one of which another process has for itself."""

    @staticmethod
    def device_count():
        return 2

    @staticmethod
    def get_device_properties(index):
        return SimpleNamespace(name=f"GPU {index}")

    @staticmethod
    def mem_get_info(index):
        if index:
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ...")
        return 30_000_000_000, 80_000_000_000


@pytest.fixture
def with_driver(monkeypatch):
    monkeypatch.setattr(devices, "find_library", lambda name: "libcuda.so.1")


def cuda_devices():
    return {device.name: device for device in devices._cuda_devices()}


def test_a_gpu_is_listed_with_its_memory_and_a_busy_one_with_the_reason(monkeypatch, with_driver):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "cuda", Gpus)
    found = cuda_devices()
    assert found["cuda:0"].description.startswith("GPU 0, 80 GB (30 free)")
    assert found["cuda:0"].forms == ("bfloat16", "float32")
    assert found["cuda:1"].missing.endswith("(CUDA error: all CUDA-capable devices are busy or unavailable)")


@pytest.mark.parametrize(("version", "reason"), [(None, "is built without CUDA"), ("13.0", "torch finds no GPU")])
def test_a_torch_without_cuda_or_a_driver_without_a_gpu_is_the_reason(monkeypatch, with_driver, version, reason):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(Gpus, "device_count", staticmethod(lambda: 0))
    monkeypatch.setattr(torch, "cuda", Gpus)
    assert reason in cuda_devices()["cuda:0"].missing


@pytest.mark.parametrize(
    ("device", "threads"), [("cpu", 6), ("openvino:CPU", 1), ("openvino:NPU", 6), ("openvino:GPU", 6), ("cuda:0", 6)]
)
def test_torch_takes_one_thread_where_graphs_have_threads_on_the_same_cores(device, threads):
    assert torch_threads(Device.of_lane(device), 6) == threads


SPARE = {"openvino:CPU": 33, "openvino:NPU": 1, "cuda:0": 128}


@pytest.mark.parametrize(("lane", "spare"), SPARE.items())
@given(count=st.integers(0, 20_000))
def test_slots_hold_a_sequence_and_the_rows_that_fill_up_its_calls(lane, spare, count):
    device = Device.of_lane(lane)
    size, sizes = device.num_slots(count), device.slot_sizes(count)
    assert size >= count + spare == count + device.spare_slots
    assert size == sizes[-1]
    assert all(device.num_slots(one - spare) == one and device.num_slots(one - spare + 1) > one for one in sizes)


@given(count=st.integers(0, 20_000))
def test_what_is_compiled_anew_doubles_and_all_else_has_a_size_halfway(count):
    doubling = Device.of_lane("openvino:NPU").slot_sizes(count)
    halves = Device.of_lane("openvino:CPU").slot_sizes(count)
    assert doubling[0] == halves[0] == 256
    assert all(after == 2 * before for before, after in pairwise(doubling))
    assert set(doubling) >= {size for size in halves if size.bit_count() == 1}
    assert all(4 * before <= 3 * after <= 4.5 * before for before, after in pairwise(halves))


def test_torch_looks_at_what_is_there():
    assert Device.of_lane("cpu0").num_slots(777) == 777
