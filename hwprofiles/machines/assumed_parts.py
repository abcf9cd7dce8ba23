"""What nobody said of a machine: parts that are assumed and told, and numbers without which there is no answer."""

from collections.abc import Iterable, Iterator
from typing import Final

from decoding.errors import ProfileError
from hwprofiles.machines.device_names import ASSUMED_CPUS, other_memory
from hwprofiles.platform import Platform

_NEEDED: Final = {
    "bf16_flops": "its dense half-precision peak (bf16_flops: 60 TFLOPS)",
    "memory_bytes_per_s": "the bandwidth of its memory (memory_bytes_per_s: 250 GB/s), or the pool that it is in",
}
"""What no guess can stand in for of a GPU or NPU, by field, and how it is given."""


def assumed_cpu(platform: Platform) -> str | None:
    """Return the host of a machine that was called by its cards alone, so that its CPU is assumed; None of others."""
    host = platform.host
    return host if host is not None and platform.device(host).sheet in ASSUMED_CPUS else None


def assumed_of(platform: Platform) -> Iterator[str]:
    """Yield what nobody said of a machine's devices, in sentences: memories, and its CPU with its links."""
    yield from dict.fromkeys(filter(None, (other_memory(one, one.sheet) for one in platform.devices.values())))
    for name, device in platform.devices.items():
        if (peak := platform.carried_rate(name)) is not None and device.memory_efficiency is not None:
            rate = device.memory_efficiency.value * peak.value
            yield (
                f"Assumed: {name} reads {rate / 1e9:.3g} GB/s here, as was measured on the chip of its data sheet. "
                f"--set {name}.memory_efficiency= takes a share of this memory."
            )
    host = assumed_cpu(platform)
    if host is None or (memory := platform.device(host).memory_bytes) is None:  # a server's only passes messages on
        return
    ways: dict[str, list[str]] = {}
    for link in platform.links:
        if host in link.between:
            ways.setdefault(link.name, []).append(next(end for end in link.between if end != host))
    links = " and ".join(f"joined to {', '.join(ends)} by {name}" for name, ends in ways.items())
    yield (
        f"Assumed: {platform.device(host).name}, {memory.value / 1e9:g} GB, {links}. "
        "--add takes yours in its place (ryzen-5800x, or a data sheet's YAML)."
    )


def require_speeds(platform: Platform, devices: Iterable[str], files: Iterable[str] = ()) -> None:
    """Refuse accelerators that give no peak or no bandwidth, for which nothing can stand in.

    `files` describe them. CPUs may be there only for what is linked to them.

    Raises:
        ProfileError: names files, device and field, and says what to give.
    """
    for name in devices:
        device, is_pooled = platform.device(name), any(name in one.devices for one in platform.memory_pools.values())
        for field, what in () if device.kind == "cpu" else _NEEDED.items():
            if getattr(device, field) is not None or (is_pooled and field == "memory_bytes_per_s"):
                continue
            where = " or ".join(files)
            raise ProfileError(
                f"{where}{': ' * bool(where)}{name} ({device.name}) gives no {field}, so nothing is known of it: "
                f"give {what} there, or --set {name}.{field}=..., or leave the device out"
            )
