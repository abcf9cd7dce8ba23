"""How OpenVINO is told to compile, by device and form of weights; plain data, which a process of its own can be sent.

On an NPU a graph is compiled whole (`NPUW_ONLINE_PIPELINE`): cut by OpenVINO's own rules, a head did not compile
(2026.4). Where `runtime.backends.lane_device` says that the NPU is the CPU, the same path compiles for the CPU and
computes in float32: defaults of the CPU say so, since a graph that was read from disk has forgotten what it was
compiled with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runtime.backends.lane_device import Device, npu_is_on_cpu
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.limits import cpu_computes_bfloat16
from runtime.instruction_set import has_vnni


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of a device's graphs, and of the CPU where graphs of another name end up there."""

    graph: dict[str, Any]
    cpu: dict[str, Any] = field(default_factory=dict)

    def new_core(self) -> ov.Core:
        """OpenVINO with the defaults set."""
        core = ov.Core()
        if self.cpu:
            core.set_property("CPU", self.cpu)
        return core


def settings_of(device: Device, form: str, num_threads: int) -> Settings:
    """Return how graphs of a form are compiled for a device."""
    if device.is_npu:
        return _npu_settings(num_threads)
    in_float32 = form == "float32" or (device.has_open_sizes and not cpu_computes_bfloat16())
    graph: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32" if in_float32 else "bf16"}
    if device.has_open_sizes:
        graph |= _cpu_settings(num_threads)
    if form in ("int8", "int4"):
        # rows are rounded to int8 in groups: faster, and alike at every number of rows (`row_floor`)
        graph["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 32 if has_vnni() else 0
    return Settings(graph=graph)


def _npu_settings(num_threads: int) -> Settings:
    graph = {"NPU_USE_NPUW": "YES", "NPUW_ONLINE_PIPELINE": "NONE", "NPUW_DEVICES": "NPU"}
    if not npu_is_on_cpu():
        return Settings(graph=graph)
    return Settings(
        graph=graph | {"NPUW_DEVICES": "CPU"},
        cpu=_cpu_settings(num_threads) | {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
    )


def _cpu_settings(num_threads: int) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": num_threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        # code made for a whole attention block rounds otherwise by how many layers its graph has: where few query
        # heads share a key, a segment that is cut in two was not the same to the last bit
        "SNIPPETS_MODE": "DISABLE",
    }
