"""The devices of this machine: the weight formats that each supports, and why one is missing."""

import importlib.util
import platform
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from decoding.errors import ConfigError
from runtime.backends.lane_device import EAGER, NPU_ON_CPU, NPU_POSITIONS, NPU_ROWS, Device, npu_is_on_cpu


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStatus:
    """A device that lanes can use, the weight formats that it supports, and the reason if it is missing."""

    name: str
    description: str
    forms: tuple[str, ...] = ()
    lanes: str = ""
    missing: str | None = None


def status_of(name: str) -> DeviceStatus:
    """Return the status of a device, importing only that device's library."""
    device = Device.of_lane(name)
    compiled = _openvino_devices() if device.is_compiled else ()
    found = _cuda_devices() if device.library == "cuda" else (_eager(), *compiled)
    unknown = _missing(name, "", "this machine has no such device")
    return next((status for status in found if status.name == name), unknown)


def require_device(name: str) -> Device:
    """Return a device; if it is missing, raise `ConfigError` with the available ones."""
    if (why := status_of(name).missing) is not None:
        there = ", ".join(status.name for status in devices() if status.missing is None)
        raise ConfigError(f"device {name!r} is not there: {why}. Devices here: {there}")
    return Device.of_lane(name)


def require_form(lane: str, device: str, dtype: str) -> None:
    """Raise `ConfigError` if a lane's device does not support a weight format."""
    forms = status_of(device).forms
    if dtype not in forms:
        raise ConfigError(
            f"lane {lane!r} does not compute with {dtype}; it does with {', '.join(forms)}. "
            "Lanes with int8 and int4 weights are those of openvino"
        )


def require_readable_cache(lane: str, method: str) -> None:
    """Raise `ConfigError` for a method with streams on a lane whose back end does not expose its KV cache."""
    if not Device.of_lane(lane).has_readable_cache:
        raise ConfigError(
            f"method {method} needs a lane of torch, such as cpu0: streams read the KV cache, which lane {lane!r} does "
            "not expose"
        )


@cache
def devices() -> tuple[DeviceStatus, ...]:
    """Return all devices that lanes can name here, present or not."""
    return (_eager(), *_openvino_devices(), *_cuda_devices())


def _eager() -> DeviceStatus:
    return DeviceStatus(
        name=EAGER,
        description=f"{platform.machine()} cores by torch",
        forms=("bfloat16", "float32"),
        lanes="targets, drafts, heads and streams of every kind",
    )


@cache
def _openvino_devices() -> tuple[DeviceStatus, ...]:
    if importlib.util.find_spec("openvino") is None:
        why = "the package openvino is not installed"
        return tuple(_missing(f"openvino:{kind}", what, why) for kind, what in _KINDS.items())
    from runtime.backends.openvino.library import new_core

    core = new_core()
    found = []
    for kind, what in _KINDS.items():
        names = [name for name in core.available_devices if name.split(".")[0] == kind]
        if kind == "NPU" and npu_is_on_cpu():
            why = f"the NPU's path on the CPU ({NPU_ON_CPU}): it shows what is written, not how fast"
            found.append(_npu("openvino:NPU", why, ("float32",)))
        elif names:
            found += [_openvino_device(name, core.get_property(name, "FULL_DEVICE_NAME")) for name in names]
        else:
            found.append(_missing(f"openvino:{kind}", what, _why_missing(kind)))
    return tuple(found)


def _npu(name: str, description: str, more: tuple[str, ...] = ()) -> DeviceStatus:
    """Return the status of an NPU, which computes in float16 with weights of any format."""
    rows = ", ".join(map(str, NPU_ROWS))
    return DeviceStatus(
        name=name,
        description=description,
        forms=(*more, "bfloat16", "int8", "int4"),
        lanes=f"draft models, compiled for {rows} rows and up to {NPU_POSITIONS - 1} KV positions; "
        "no streams. A row's bits may depend on how many it is compiled with: a target there may write another text",
    )


def _openvino_device(own_name: str, description: str) -> DeviceStatus:
    device = Device.of_lane(f"openvino:{own_name}")
    description = f"{description.strip()}, graphs compiled by OpenVINO"
    if device.is_npu:
        return _npu(device.name, description)
    from runtime.backends.openvino import buckets

    if device.has_dynamic_shapes and not buckets.cpu_computes_bfloat16():
        description += "; this CPU lacks bfloat16, so such weights take the time and memory of float32"
    return DeviceStatus(
        name=device.name,
        description=description,
        forms=("bfloat16", "float32", "int8", *(("int4",) if device.has_dynamic_shapes else ())),
        lanes="targets with exits, draft models; heads of a target by torch in the same lane; no streams",
    )


def _cuda_devices() -> tuple[DeviceStatus, ...]:
    # checks for a driver first, as importing torch takes seconds
    if find_library("cuda") is None and not Path("/proc/driver/nvidia/version").exists():
        why = "no NVIDIA driver (libcuda) was found"
    else:
        import torch

        if torch.version.cuda is not None and (count := torch.cuda.device_count()):
            return tuple(_cuda_device(index) for index in range(count))
        without = f"torch {torch.__version__} is built without CUDA"
        why = f"there is a driver, but {without if torch.version.cuda is None else 'torch finds no GPU with it'}"
    return (_missing("cuda:0", "an NVIDIA GPU", why),)


def _cuda_device(index: int) -> DeviceStatus:
    """Return the status of a GPU with its memory; a busy or broken one is missing."""
    import torch

    name = f"cuda:{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        return _missing(name, "an NVIDIA GPU", f"it cannot be used now: it is busy or broken ({reason})")
    return DeviceStatus(
        name=name,
        description=f"{properties.name}, {total / 1e9:.0f} GB ({free / 1e9:.0f} free), captured graphs of torch",
        forms=("bfloat16", "float32"),
        lanes="targets with exits, draft models; heads by torch, kernel by kernel; no streams",
    )


def _missing(name: str, description: str, why: str) -> DeviceStatus:
    return DeviceStatus(name=name, description=description, missing=why)


def _why_missing(kind: str) -> str:
    if kind not in _DRIVERS:
        return "OpenVINO's CPU plug-in does not load"
    folder, pattern, node, driver = _DRIVERS[kind]
    if platform.system() == "Linux" and not any(Path(folder).glob(pattern)):
        return f"no {kind} was found (no {node} in {folder})"
    return f"OpenVINO finds no {kind} of Intel's with a driver (on Linux: {driver})"


_KINDS: Final = {"CPU": "the CPU", "GPU": "an Intel GPU", "NPU": "an Intel NPU"}
_DRIVERS: Final = {
    "GPU": ("/dev/dri", "renderD*", "render node", "intel-opencl-icd"),
    "NPU": ("/dev/accel", "accel*", "device", "linux-npu-driver"),
}
"""For a kind of device: the folder and names of its files on Linux, what these are called, and the driver's package."""
