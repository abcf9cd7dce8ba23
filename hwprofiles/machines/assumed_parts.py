"""Parts of a machine that the user did not describe: which are assumed (and said so), and which must be given."""

from collections.abc import Iterable, Iterator
from typing import Final

from decoding.errors import ProfileError
from hwprofiles.machines.device_names import ASSUMED_CPUS, other_memory
from hwprofiles.platform import Platform

_NEEDED: Final = {
    "bf16_flops": "its dense half-precision peak (bf16_flops: 60 TFLOPS)",
    "memory_bytes_per_s": "the bandwidth of its memory (memory_bytes_per_s: 250 GB/s), or the pool that it is in",
}
"""Fields of a GPU or NPU that cannot be guessed, and how to give them."""


def assumed_cpu(platform: Platform) -> str | None:
    """Return the host's name if its CPU is assumed (the machine was named by its cards only); else None."""
    host = platform.host
    return host if host is not None and platform.device(host).sheet in ASSUMED_CPUS else None


def assumed_of(platform: Platform) -> Iterator[str]:
    """Yield a sentence on each assumption about a machine's devices: memories, and the CPU with its links."""
    yield from dict.fromkeys(filter(None, (other_memory(one, one.sheet) for one in platform.devices.values())))
    for name, device in platform.devices.items():
        if (peak := platform.carried_rate(name)) is not None and device.memory_efficiency is not None:
            rate = device.memory_efficiency.value * peak.value
            yield (
                f"Assumed: {name} reads {rate / 1e9:.3g} GB/s here, as was measured on the chip of its data sheet. "
                f"--set {name}.memory_efficiency= takes a share of this memory."
            )
    host = assumed_cpu(platform)
    if host is None or (memory := platform.device(host).memory_bytes) is None:  # a server's CPU only forwards messages
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
    """Raise `ProfileError` for a GPU or NPU without peak FLOP/s or bandwidth; the message says what to give.

    `files` are the files that describe the devices, for the message. CPUs are exempt: they may only forward messages.
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
