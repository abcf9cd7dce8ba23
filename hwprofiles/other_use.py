"""Measures how much of this machine other programs use, which makes measured times less certain.

The time that the cores worked is compared with what the processes of this program took of it; a load average would hold
our own lanes, and the last minute. Only where there is `/proc` (Linux).
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_WORKING: Final = (0, 1, 2, 5, 6)
"""Places of user, nice, system, irq and softirq in a line of `/proc/stat`; guests are counted in user and nice."""
_STOLEN: Final = 7
_OWN: Final = slice(11, 15)
"""Places of utime, stime, cutime and cstime in `/proc/<pid>/stat`, counted after the name."""
_LEAST_WALL_S: Final = 0.2
"""Shortest time over which counters tell anything: the kernel counts in steps of about 10 ms."""
_QUIET_CORES, _QUIET_SHARE = 0.15, 0.03
"""What system services use: cores, or on larger machines a share of them."""
LESS_CERTAIN: Final = "less certain than on a quiet machine"
_SHOWN: Final = 0.05
"""Cores that are worth a number with one decimal."""


class Counters(NamedTuple):
    """Seconds of CPU time so far.

    Attributes:
        working: all that the cores of this process worked.
        own: this process and all its descendants, those that have ended included.
        stolen: what the host of a virtual machine took while there was something to do.
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
    """Watches what others use from its making on."""

    def __init__(
        self,
        read: Callable[[], Counters | None] | None = None,
        *,
        num_cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take `read`, `num_cores` and `clock` from this machine where they are not given."""
        self._read = read or read_counters
        self._num_cores = num_cores or len(usable_cores())
        self._clock = clock
        self._start = self._last = self._now()

    def so_far(self) -> Use | None:
        """Return the use since the start; None where the system has no counters, or too little time has passed."""
        return self._between(self._start, self._now())

    def lately(self) -> Use | None:
        """Return the use since this last returned one, or else since the start."""
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
    """Return the counters now; None where this system has none."""
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
    """Return this process and its descendants, parents first; only itself where there is no `/proc`."""
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
    """Return a process's state, parent and counters, which follow its name; empty if it has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def busy(use: Use | None, effect: str = f"what is measured is {LESS_CERTAIN}", *, is_over: bool = False) -> str | None:
    """Return a warning, during the work or when it is over; None on a quiet machine, or where use is not known."""
    if use is None or not use.is_noticeable:
        return None
    host = f" and the host of this virtual machine {use.host:.1f}" if use.host >= _SHOWN else ""
    verb, when = ("used", " meanwhile") if is_over else ("are using", "")
    cores = f"{use.num_cores} core{'s' * (use.num_cores != 1)}"
    return f"Other programs {verb} {use.programs:.1f} of the {cores}{host}{when}: {effect}."
