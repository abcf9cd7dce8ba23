"""Anchors: the same short work on a lane again and again, to compare everything else with.

A shared machine changes its speed within seconds, and no model of it can foresee that. What is timed between two
anchors of its lane is known relative to them, whatever the machine did before and after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

from calibrate.profiling.visits import visit
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement

_REPEATS = 3


class AnchorSample(NamedTuple):
    """One anchor: when it was taken, on which lane, and the mean of its repeats."""

    at_s: float
    lane: str
    seconds: float


class Anchors:
    """Times one-row verifications on any lane, whenever asked, and keeps them all.

    Attributes:
        samples: all that was taken, in that order; `at_s` counts from the first.
    """

    def __init__(self, lanes: Mapping[str, Lane], *, context: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take them on lanes that hold the target; `context` is the number of cached tokens of the work."""
        self.samples: list[AnchorSample] = []
        self._lanes = lanes
        self._work = Measurement(part="verify", rows=1, context=context, repeats=_REPEATS, warm_up=1)
        self._clock = clock
        self._start_s = clock()

    def take(self, lane: str) -> float:
        """Mean seconds of the work on a lane, now.

        Raises:
            LaneError: the lane was lost.
        """
        at_s = self._clock() - self._start_s
        seconds, _ = visit(self._lanes[lane], self._work)
        self.samples.append(AnchorSample(at_s, lane, fmean(seconds)))
        return self.samples[-1].seconds
