"""Which devices lanes can be on, how lanes name them, and why one is missing.

A lane's name carries its device:

    cpu0, cpu0+1, any name without a colon   the CPU's cores by torch as it comes
    openvino:CPU                             all cores by compiled graphs
    openvino:CPU@0                           the cores of the lane cpu0 by compiled graphs
    openvino:GPU, openvino:NPU               other devices of OpenVINO
    cuda:0, cuda:0#2                         a GPU by captured graphs; a second lane of it

Every lane is a process, so a second one of a GPU has a stream and memory of its own. The GPU gives processes turns, and
runs kernels of two at once only where NVIDIA's Multi-Process Service (MPS) runs.

Nothing is imported here until a device is looked for.
"""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from decoding.errors import ConfigError
from runtime.backends import npu

EAGER: Final = "cpu"
"""The device of lanes whose names have no colon."""
OPENVINO: Final = "openvino:"
CUDA: Final = "cuda:"
COMPILED_ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Those that have a graph for OpenVINO (`runtime.backends.openvino.graphs.graph`)."""
_RULE: Final = re.compile(r"(openvino:[A-Z]+(?:\.\d+)?|cuda:\d+)(?:[@#]\d+(?:\+\d+)*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device that lanes can be on, or could be.

    Attributes:
        name: as lanes begin with it.
        description: what it is.
        forms: of weights that it computes with; empty where it is missing.
        lanes: what a lane there does.
        missing: why it is not there; None if it is.
    """

    name: str
    description: str
    forms: tuple[str, ...] = ()
    lanes: str = ""
    missing: str | None = None


def device_of(lane: str) -> str:
    """The device that a lane's name says.

    Raises:
        ConfigError: the name has a colon and is not of the form of a device's.
    """
    if ":" not in lane:
        return EAGER
    if (found := _RULE.fullmatch(lane)) is None:
        raise ConfigError(
            f"lane {lane!r} names no device; names are such as cpu0, openvino:CPU, openvino:CPU@0, openvino:NPU, cuda:0"
        )
    return found[1]


def is_compiled(device: str) -> bool:
    """Whether graphs of OpenVINO compute a device's models: such a lane needs no torch."""
    return device.startswith(OPENVINO)


def compiles(device: str) -> bool:
    """Whether a lane on a device has something to compile before a sequence."""
    return device != EAGER


def backend_of(name: str) -> str:
    """What computes on a device or lane of this name, as records have it: `torch`, `openvino:CPU`, `cuda`.

    It decides, with the weights' form, which token a near tie goes to. Devices of a kind are taken to be one.
    """
    found = _RULE.fullmatch(name)
    if found is None:
        return "torch"
    return "cuda" if name.startswith(CUDA) else found[1].partition(".")[0]


def computes(device: str, dtype: str) -> bool:
    """Whether a device is there, and computes with a form of weights."""
    return any(one.name == device and dtype in one.forms for one in _of_the_kind(device))


def knows(device: str, architecture: str) -> bool:
    """Whether a device computes an architecture, named as in a Hugging Face configuration; torch does all of ours."""
    return device == EAGER or device.startswith(CUDA) or architecture in COMPILED_ARCHITECTURES


def runs_streams(device: str) -> bool:
    """Whether torch modules on a device may look at a text's keys: streams do (`Backend.has_open_keys`).

    A draft of four layers would gain nothing by it elsewhere: guesses run its two upper layers and the head again, and
    where they were measured a step costs more plain ones than it brings tokens (benchmarks/results/draft-streams.json).
    """
    return backend_of(device) == "torch"


def timed_rows(device: str, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Row counts to time on a device in place of `rows`, which suit one where each row costs a little more."""
    return npu.stair(rows[-1]) if device.startswith(f"{OPENVINO}NPU") else rows


def require_device(name: str) -> None:
    """Refuse a device that is not there.

    Raises:
        ConfigError: names the device, why it is missing, and those that are there.
    """
    if any(device.name == name and device.missing is None for device in _of_the_kind(name)):
        return
    found = {device.name: device for device in devices()}
    why = found[name].missing if name in found else "this machine has no such device"
    there = ", ".join(device.name for device in found.values() if device.missing is None)
    raise ConfigError(f"device {name!r} is not there: {why}. Devices here: {there}")


def require_form(lane: str, device: str, dtype: str) -> None:
    """Refuse a form of weights that a device does not compute with.

    Raises:
        ConfigError: names the lane and the forms that it has.
    """
    own = next((one.forms for one in _of_the_kind(device) if one.name == device), ())
    if dtype not in own:
        raise ConfigError(
            f"lane {lane!r} does not compute with {dtype}; it does with {', '.join(own)}. "
            "Lanes with int8 and int4 weights are those of openvino"
        )


@cache
def devices() -> tuple[Device, ...]:
    """All devices that lanes can name here, present or not."""
    return (_eager(), *_openvino_devices(), *_cuda_devices())


def _of_the_kind(name: str) -> tuple[Device, ...]:
    """Those that a device could be; nothing is imported that the others need."""
    if name.startswith(CUDA):
        return _cuda_devices()
    return _openvino_devices() if is_compiled(name) else (_eager(),)


def _eager() -> Device:
    return Device(
        name=EAGER,
        description=f"{platform.machine()} cores, torch as it comes",
        forms=("bfloat16", "float32"),
        lanes="targets, drafts, heads and streams of every kind",
    )


@cache
def _openvino_devices() -> tuple[Device, ...]:
    if importlib.util.find_spec("openvino") is None:
        missing = "the package openvino is not installed"
        return tuple(_missing(f"{OPENVINO}{kind}", what, missing) for kind, what, _ in _KINDS)
    from runtime.backends.openvino.library import ov

    core = ov.Core()
    there = core.available_devices
    found = []
    for kind, what, why in _KINDS:
        if kind == "NPU" and npu.is_on_cpu():
            found.append(
                _npu(
                    f"the NPU's path on the CPU ({npu.ON_CPU}): it shows what is written, not how fast",
                    ("float32",),
                )
            )
            continue
        own = [name for name in there if name.split(".")[0] == kind]
        found += [_openvino_device(name, core.get_property(name, "FULL_DEVICE_NAME")) for name in own]
        if not own:
            found.append(_missing(f"{OPENVINO}{kind}", what, why()))
    return tuple(found)


def _npu(description: str, more: tuple[str, ...] = (), name: str = "NPU") -> Device:
    """An NPU computes in float16, with whatever weights."""
    return Device(
        name=f"{OPENVINO}{name}",
        description=description,
        forms=(*more, "bfloat16", "int8", "int4"),
        lanes=f"draft models, by graphs of {', '.join(map(str, npu.ROWS))} rows and up to {npu.SLOTS - 1} slots; "
        "no streams. A row's bits may depend on how many rows its graph has: a target there may write another text",
    )


def _openvino_device(name: str, description: str) -> Device:
    if name.split(".", maxsplit=1)[0] == "NPU":
        return _npu(f"{description.strip()}, graphs compiled by OpenVINO", name=name)
    return Device(
        name=f"{OPENVINO}{name}",
        description=f"{description.strip()}, graphs compiled by OpenVINO",
        forms=("bfloat16", "float32", "int8", *(("int4",) if name == "CPU" else ())),
        lanes="targets with exits, draft models; heads of a target by torch in the same lane; no streams",
    )


def _cuda_devices() -> tuple[Device, ...]:
    # torch takes seconds to import, and without a driver the answer is known
    if find_library("cuda") is None and not Path("/proc/driver/nvidia/version").exists():
        return (_missing("cuda:0", "an NVIDIA GPU", "no NVIDIA driver (libcuda) was found"),)
    import torch

    if torch.version.cuda is None:
        why = f"there is a driver, but torch {torch.__version__} is built without CUDA"
        return (_missing("cuda:0", "an NVIDIA GPU", why),)
    count = torch.cuda.device_count()
    if not count:
        return (_missing("cuda:0", "an NVIDIA GPU", "there is a driver, and torch finds no GPU with it"),)
    return tuple(_cuda_device(index) for index in range(count))


def _cuda_device(index: int) -> Device:
    """A GPU with its memory; one that gives a process nothing, being busy for others alone or broken, is missing."""
    import torch

    name = f"{CUDA}{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        return _missing(name, "an NVIDIA GPU", f"it cannot be used now: it is busy or broken ({reason})")
    return Device(
        name=name,
        description=f"{properties.name}, {total / 1e9:.0f} GB ({free / 1e9:.0f} free), captured graphs of torch",
        forms=("bfloat16", "float32"),
        lanes="targets with exits, draft models; heads by torch on the CPU; no streams",
    )


def _missing(name: str, description: str, why: str) -> Device:
    return Device(name=name, description=description, missing=why)


def _no_gpu() -> str:
    if _is_linux() and not any(Path("/dev/dri").glob("renderD*")):
        return "no GPU was found (no render node in /dev/dri)"
    return "OpenVINO finds no GPU of Intel's with a driver (on Linux: intel-opencl-icd)"


def _no_npu() -> str:
    if _is_linux() and not any(Path("/dev/accel").glob("accel*")):
        return "no NPU was found (no device in /dev/accel)"
    return "OpenVINO finds no NPU of Intel's with a driver (on Linux: linux-npu-driver)"


def _is_linux() -> bool:
    return platform.system() == "Linux"


def _no_cpu() -> str:
    return "OpenVINO's CPU plug-in does not load"


_KINDS: Final[tuple[tuple[str, str, Callable[[], str]], ...]] = (
    ("CPU", "the CPU", _no_cpu),
    ("GPU", "an Intel GPU", _no_gpu),
    ("NPU", "an Intel NPU", _no_npu),
)
