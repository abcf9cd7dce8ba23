"""Passes over everything that is measured: as many as wanted, fewer where time is short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf


@dataclass(kw_only=True, slots=True)
class Passes:
    """An iterator's worth of passes, to be gone through once: numbers from 0.

    The first pass is always made. Another one is begun if it would be over by `end_s`, should it take as long as the
    last one: a pass is never broken off, so all that is measured has the same number of repeats.

    Attributes:
        count: passes wanted.
        end_s: when there should be none any more, by `clock`.
        clock: in seconds.
        num_done: passes made.
    """

    count: int
    end_s: float = inf
    clock: Callable[[], float] = time.monotonic
    num_done: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[int]:
        last_s = 0.0
        for index in range(self.count):
            start_s = self.clock()
            if index > 0 and start_s + last_s > self.end_s:
                return
            yield index
            last_s = self.clock() - start_s
            self.num_done += 1
