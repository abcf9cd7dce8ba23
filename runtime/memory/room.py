"""Whether what lanes need is there, before they are asked to take it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from decoding.errors import MemoryFitError
from runtime.memory.needs import LaneNeed

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class Room:
    """The memory of this machine, which lanes have taken some of already."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def take(self, needs: Mapping[str, LaneNeed], *, running: Collection[str], available: int | None = None) -> None:
        """Give lanes what they need of `available` bytes (None: the machine's); raise `MemoryFitError` without.

        Lanes that are `running` still hold what they took before.
        """
        self._taken = {lane: taken for lane, taken in self._taken.items() if lane in running}
        missing = sum(max(0, need.total - self._taken.get(lane, 0)) for lane, need in needs.items())
        if missing:
            available = available_bytes() if available is None else available
            if available is not None and missing > available:
                lanes = "; ".join(f"lane {lane!r} {in_words(need)}" for lane, need in needs.items())
                lack = f"{gigabytes(missing)} more memory needed, {gigabytes(available)} available"
                raise MemoryFitError(f"{lack}. {lanes}. {_advice(needs)}")
        self._taken |= {lane: max(need.total, self._taken.get(lane, 0)) for lane, need in needs.items()}


def available_bytes() -> int | None:
    """Memory that processes can still take here, what the system can give up for it included; None if unknown."""
    found = [room for room in (_of_the_machine(), _of_the_container()) if room is not None]
    return min(found, default=None)


def _of_the_machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _of_the_container() -> int | None:
    """Return what a control group leaves, its cached files counted as free; None where there is no limit."""
    try:
        most, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return most - used + int(cached["inactive_file"]) + int(cached["active_file"])
    except (OSError, KeyError, ValueError):
        return None


def _advice(needs: Mapping[str, LaneNeed]) -> str:
    parts = {
        "a smaller model, or bfloat16 if this is float32": sum(need.weights for need in needs.values()),
        "shorter prompts and texts": sum(need.keys_values for need in needs.values()),
        "fewer roots (exit_top_k, draft_top_k)": sum(need.branches for need in needs.values()),
        "shorter windows": sum(need.working for need in needs.values()),
    }
    return f"What helps most: {max(parts, key=lambda name: parts[name])}"


def in_words(need: LaneNeed) -> str:
    """The parts of what a lane needs."""
    return (
        f"{gigabytes(need.total)} (weights {gigabytes(need.weights)}, keys and values {gigabytes(need.keys_values)}, "
        f"branches {gigabytes(need.branches)}, a pass {gigabytes(need.working)}, process {gigabytes(need.process)})"
    )


def gigabytes(num_bytes: int) -> str:
    """Bytes for people."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
