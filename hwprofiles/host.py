"""This machine: the facts that identify it in profiles and acceptance records, and its lanes with their cores."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hwprofiles.other_use import usable_cores

_CPU_INFO = Path("/proc/cpuinfo")
_CPU_FOLDER = Path("/sys/devices/system/cpu")
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
_LIBRARIES = ("openvino",)
"""Libraries whose version matters only for some devices."""
_ANSWER_S = 10.0
"""Timeout of `nvidia-smi`."""
_X86_SETS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
_INSTRUCTION_SETS = frozenset({*_X86_SETS, "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"})
"""Instruction sets that decide which matrix kernels are chosen, by their names in Linux."""
_DECISIVE = {
    "cpu_model": "processor",
    "gpu": "GPU",
    "instruction_sets": "instruction sets",
    "cores": "number of cores",
    "torch": "PyTorch",
    "openvino": "OpenVINO",
}
"""Facts that decide whether a measurement is valid here, and (except the cores) which token wins a near tie."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneCores:
    """A lane's name and the logical cores that its process is pinned to, with one thread on each."""

    name: str
    cores: tuple[int, ...]

    @property
    def num_threads(self) -> int:
        """Threads that the lane computes with."""
        return max(1, len(self.cores))


def describe_host(devices: Iterable[str] = ()) -> dict[str, Any]:
    """Return the facts that identify this machine and its software, as plain YAML data.

    `devices` adds what matters for them: a library's version, and the model of the first CUDA GPU.
    """
    host: dict[str, Any] = {
        "cpu_model": _cpu_info("model name") or platform.processor() or platform.machine(),
        "instruction_sets": " ".join(sorted(_INSTRUCTION_SETS & {*_cpu_info("flags", "Features").split()})),
        "cores": list(available_cores()),
        "memory_gb": round(_memory_bytes() / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
    }
    devices = list(devices)
    needed = {device.partition(":")[0] for device in devices}
    gpus = [_gpu(device) for device in devices if device.startswith("cuda:")]
    return host | {name: _version(name) for name in _LIBRARIES if name in needed} | ({"gpu": gpus[0]} if gpus else {})


def computing_host(device: str) -> dict[str, str]:
    """Return the facts of this machine that decide which tokens a device chooses."""
    host = describe_host([device])
    return {name: host[name] for name in _DECISIVE if name != "cores" and host.get(name)}


def differences(host: Mapping[str, Any], *, here: Mapping[str, Any] | None = None) -> str | None:
    """Say how `host` differs from this machine (or from `here`) in decisive facts; None if it does not.

    Only facts that both have are compared; of the cores only their number.
    """
    if here is None:
        here = describe_host(_LIBRARIES)
        if host.get("gpu") and _gpus():
            here["gpu"] = host["gpu"] if host["gpu"] in _gpus() else _gpus()[0]
    found = {}
    for name, word in _DECISIVE.items():
        there, ours = (len(one) if isinstance(one, list) else one for one in (host.get(name), here.get(name)))
        if there and ours and there != ours:
            found[name] = f"{word} {there}, here {ours}"
    if "cpu_model" in found:
        found.pop("instruction_sets", None)
    return "; ".join(found.values()) or None


def lanes_of(device: str) -> tuple[LaneCores, ...]:
    """Return the lanes of a device of `runtime.backends.devices`; the lanes of a CPU are those of `split_lanes`.

    The processes that feed other devices are pinned to the last cores, since CPU targets run on the first ones. A CUDA
    GPU has a second lane with a process of its own.
    """
    cores = available_cores()
    if device == "cpu":
        return split_lanes(cores)
    if device != "openvino:CPU":
        lane = LaneCores(name=device, cores=(cores[-1],))
        second = LaneCores(name=f"{device}#2", cores=(cores[-2:][0],))
        return (lane, second) if device.startswith("cuda:") else (lane,)
    names = {"cpu0": "openvino:CPU@0", "cpu1": "openvino:CPU@1", "cpu0+1": "openvino:CPU"}
    return tuple(replace(lane, name=names[lane.name]) for lane in split_lanes(cores))


def split_lanes(cores: Sequence[int]) -> tuple[LaneCores, ...]:
    """Return two halves, `cpu0` and `cpu1`, and the whole, `cpu0+1`; only `cpu0` for a single core.

    Halves pay because decoding is memory-bound: twice the cores do not double a target's speed. If the number of cores
    is odd, `cpu0` (the target's half) gets one more.
    """
    if len(cores) == 1:
        return (LaneCores(name="cpu0", cores=tuple(cores)),)
    middle = (len(cores) + 1) // 2
    parts = {"cpu0": cores[:middle], "cpu1": cores[middle:], "cpu0+1": cores}
    return tuple(LaneCores(name=name, cores=tuple(part)) for name, part in parts.items())


def available_cores() -> tuple[int, ...]:
    """Return the logical cores to use: one per physical core, or all if there is a single physical core.

    A container's CPU quota limits their number, since more threads would be throttled.
    """
    allowed = usable_cores()
    physical = sorted({min(sibling for sibling in _siblings(core) if sibling in allowed) for core in allowed})
    cores = physical if len(physical) > 1 else allowed
    quota = _quota()
    return tuple(cores) if quota is None else tuple(cores[: max(1, int(quota))])


def _siblings(core: int) -> frozenset[int]:
    """Return the logical cores on the same physical core, `core` included."""
    text = _read(_CPU_FOLDER / f"cpu{core}" / "topology" / "thread_siblings_list")
    numbers = {core}
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _quota() -> float | None:
    """Return the number of CPUs that the control group (cgroup) grants; None without a limit."""
    limit, _, period = _read(_CGROUP_QUOTA).strip().partition(" ")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else None


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(_CGROUP_MEMORY).strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _cpu_info(*keys: str) -> str:
    """Return the first `/proc/cpuinfo` value whose key is among `keys`; empty if there is none."""
    for line in _read(_CPU_INFO).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def _gpu(device: str) -> str | None:
    """Return the model name of a CUDA device such as `cuda:0`; None if the driver does not tell it."""
    index, names = device.removeprefix("cuda:"), _gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    physical = (visible[int(index)] if int(index) < len(visible) else "") or index
    return names[int(physical)] if physical.isdecimal() and int(physical) < len(names) else None


@cache
def _gpus() -> tuple[str, ...]:
    """Return the model names of all NVIDIA GPUs in the driver's order; cached, as the driver may take a second."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(filter(None, map(str.strip, answer.stdout.splitlines())))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; empty if this system does not have it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
