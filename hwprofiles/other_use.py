"""Measures how much CPU time other programs use, since that makes measured times less certain. Linux only (`/proc`).

Their use is the busy time of the cores minus the CPU time of this program's processes. A load average would not do: it
includes our own lanes, and the last minute.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_WORKING: Final = (0, 1, 2, 5, 6)
"""Columns user, nice, system, irq and softirq of `/proc/stat`; user and nice include guests."""
_STOLEN: Final = 7
_OWN: Final = slice(11, 15)
"""Columns utime, stime, cutime and cstime of `/proc/<pid>/stat`, counted after the process's name."""
_LEAST_WALL_S: Final = 0.2
"""Shortest time over which the counters are meaningful: the kernel counts in steps of about 10 ms."""
_QUIET_CORES, _QUIET_SHARE = 0.15, 0.03
"""What system services use on a quiet machine: the larger of so many cores and this share of all cores."""
LESS_CERTAIN: Final = "less certain than on a quiet machine"
_SHOWN: Final = 0.05
"""Fewer cores would be shown as 0.0."""


class Counters(NamedTuple):
    """Seconds of CPU time so far.

    Attributes:
        working: busy time of the cores that this process may run on.
        own: CPU time of this process and all its descendants, including ended ones.
        stolen: time that the host of a virtual machine took from these cores while they had work.
    """

    working: float
    own: float
    stolen: float


class Use(NamedTuple):
    """Mean number of cores used by other `programs` and by the `host` of a virtual machine, of our `num_cores`."""

    programs: float
    host: float
    num_cores: int

    @property
    def share(self) -> float:
        """Share of all cores, 0 to 1."""
        return min(1.0, (self.programs + self.host) / self.num_cores)

    @property
    def is_noticeable(self) -> bool:
        """Whether it is more than a quiet machine shows."""
        return self.programs + self.host > max(_QUIET_CORES, _QUIET_SHARE * self.num_cores)


class OtherUse:
    """Watches the CPU use of other programs from its construction on."""

    def __init__(
        self,
        read: Callable[[], Counters | None] | None = None,
        *,
        num_cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start watching; arguments replace this machine's counters, number of cores and clock (in tests)."""
        self._read = read or read_counters
        self._num_cores = num_cores or len(usable_cores())
        self._clock = clock
        self._start = self._last = self._now()

    def so_far(self) -> Use | None:
        """Return the use since the start; None if the system has no counters or too little time has passed."""
        return self._between(self._start, self._now())

    def lately(self) -> Use | None:
        """Return the use since the last call that returned one, at first since the start; None as in `so_far`."""
        now = self._now()
        found = self._between(self._last, now)
        if found is not None:
            self._last = now
        return found

    def _now(self) -> tuple[float, Counters | None]:
        return self._clock(), self._read()

    def _between(self, first: tuple[float, Counters | None], last: tuple[float, Counters | None]) -> Use | None:
        (start_s, before), (end_s, after) = first, last
        wall_s = end_s - start_s
        if before is None or after is None or wall_s < _LEAST_WALL_S or after.working <= before.working:
            return None
        others_s = (after.working - before.working) - (after.own - before.own)
        stolen_s = after.stolen - before.stolen
        return Use(max(0.0, others_s) / wall_s, max(0.0, stolen_s) / wall_s, self._num_cores)


def read_counters(proc: Path = _PROC) -> Counters | None:
    """Return the current counters; None if this system has none."""
    try:
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        names = {f"cpu{core}" for core in usable_cores()}
        lines = [line.split() for line in (proc / "stat").read_text(encoding="utf-8").splitlines()]
        cores = [list(map(int, fields)) for name, *fields in lines if name in names]
        if not cores:
            return None
        own = sum(int(ticks) for pid in own_processes(proc) for ticks in _stat(proc, pid)[_OWN])
        working = sum(fields[place] for fields in cores for place in _WORKING)
        return Counters(working * tick_s, own * tick_s, sum(fields[_STOLEN] for fields in cores) * tick_s)
    except (OSError, ValueError, IndexError):
        return None


def own_processes(proc: Path = _PROC) -> tuple[int, ...]:
    """Return the ids of this process and its descendants, parents first; only this process without `/proc`."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdigit() and (fields := _stat(proc, int(folder.name))):
            children[int(fields[1])].append(int(folder.name))
    found = [os.getpid()]
    for pid in found:
        found += children[pid]
    return tuple(found)


def usable_cores() -> tuple[int, ...]:
    """Return the logical cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)))


def _stat(proc: Path, pid: int) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` after the name (state, parent, ...); empty if the process has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def busy(
    use: Use | None, effect: str | None = f"what is measured is {LESS_CERTAIN}", *, is_over: bool = False
) -> str | None:
    """Return a warning about other programs, in the past tense if `is_over`; None if use is low or not known.

    `effect` says what they do to the work; None if the user has been told already.
    """
    if use is None or not use.is_noticeable:
        return None
    host = f" and the host of this virtual machine {use.host:.1f}" if use.host >= _SHOWN else ""
    verb, when = ("used", " on average") if is_over else ("are using", "")
    told = "" if effect is None else f": {effect}"
    cores = f"{use.num_cores} core{'s' * (use.num_cores != 1)}"
    return f"Other programs {verb} {use.programs:.1f} of the {cores}{host}{when}{told}."
