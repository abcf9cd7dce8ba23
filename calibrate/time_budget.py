"""Passes over everything that is measured: as many as wanted, fewer where time is short."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def passes_until(end_s: float, count: int, clock: Callable[[], float], *, least: int = 1) -> Iterator[int]:
    """Numbers of up to `count` passes, from 0, that should be over by `end_s` of a clock.

    The `least` first ones are always made. Another one is begun if it would be over in time, should it take as long as
    the last one: a pass is never broken off, so all that is measured has the same number of repeats.
    """
    last_s = 0.0
    for index in range(count):
        start_s = clock()
        if index >= least and start_s + last_s > end_s:
            return
        yield index
        last_s = clock() - start_s
