"""One session on a GPU: how much is measured, what is found, and the time that is left."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from runtime.backends.cuda.captured_calls import Replay, new_event
from runtime.backends.eager import wait

Rows = list[dict[str, Any]]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        num_layers: of a target whose layers are measured: enough that none stays in a cache.
        rows: of a call.
        contexts: slots before it.
        widths: branches of a draft.
        num_bytes: that cross to the device and back.
        copied: bytes of the copy that tells the memory's speed.
        repeats: of everything.
        shrink: what sizes of models are divided by.
    """

    num_layers: int = 4
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    contexts: tuple[int, ...] = (128, 1024, 2048, 4096, 8192)
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    num_bytes: tuple[int, ...] = (64, 4096, 65_536, 1_048_576)
    copied: int = 4_000_000_000
    repeats: int = 30
    shrink: int = 1


DRY: Final = Sizes(
    num_layers=2, rows=(1, 16), contexts=(16, 300), widths=(1, 4), num_bytes=(64,), copied=1024, repeats=2, shrink=128
)


class Session:
    """One run: the device, what is found, and the time that is left."""

    def __init__(self, device: torch.device, sizes: Sizes, minutes: float) -> None:
        self.device, self.sizes = device, sizes
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.found: dict[str, Any] = {"measured": {}, "left_out": []}
        self._end_s = time.monotonic() + 60 * minutes

    @contextmanager
    def part(self, name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Collect entries of a part; what does not fit or is not reached is noted, and the others go on."""
        entries: Rows = self.found.setdefault(name, [])

        def add(entry: dict[str, Any]) -> None:
            entries.append(entry)
            if time.monotonic() > self._end_s:
                raise TimeoutError

        try:
            yield add
        except (torch.OutOfMemoryError, MemoryError, TimeoutError) as error:
            self.found["left_out"].append({"what": name, "why": type(error).__name__})
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def seconds(self, run: Callable[[], object], *, warm_up: int = 3) -> float:
        """The median of runs that follow each other, by the device's own clock."""
        for _ in range(warm_up):
            run()
        return median(elapsed_s(run, self.device, repeats=self.sizes.repeats))

    def clocked(self, run: Callable[[], object], *, warm_up: int = 3) -> float:
        """The median of runs by the host's clock, each waited for."""
        taken = []
        for _ in range(warm_up + self.sizes.repeats):
            start_s = time.perf_counter()
            run()
            wait(self.device)
            taken.append(time.perf_counter() - start_s)
        return median(taken[warm_up:])


def describe(device: torch.device, *, is_dry_run: bool) -> dict[str, Any]:
    """What was measured, and with what."""
    found = {
        "is_dry_run": is_dry_run,
        "name": "the CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "num_multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
        }
    return found


def elapsed_s(run: Replay, device: torch.device, *, repeats: int) -> Sequence[float]:
    """Seconds of runs that follow each other without a pause: by events on a GPU, by the clock on the CPU.

    On a GPU the host is waited for only where it is slower than what it asks for.
    """
    if device.type != "cuda":
        starts_s = []
        for _ in range(repeats):
            starts_s.append(time.perf_counter())
            run()
        return [after - before for before, after in pairwise([*starts_s, time.perf_counter()])]
    with torch.cuda.device(device):
        events = [new_event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        events[-1].synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]
