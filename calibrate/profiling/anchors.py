"""Anchors: the same short work, timed on a lane again and again, to compare everything else with.

A shared machine changes its speed within seconds, and no model of it can foresee that. What is timed between two
anchors of its lane is known relative to them, whatever the machine did before and after.

It may change its speed for some work and not for other: the weights of a draft model may lie in a processor's cache,
and what its neighbours leave of that says nothing of a target that is read from memory. So a draft model has anchors of
its own, steps of one row, in and after the runs that it drafts in.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Final, NamedTuple

from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Measure

_REPEATS: Final = 2
_WARM_UP: Final = 1
"""The first work of a lane after another one has worked takes longer."""
_STEP_REPEATS: Final = 3
"""A draft's steps are short, and the first finds its caches used by others, as that of a rollout does."""
_FRESH_S: Final = 0.3
"""An anchor that was taken so long ago may begin what comes next, if its lane has done nothing since."""


class AnchorSample(NamedTuple):
    """One anchor: when it was taken, on which lane, and the mean of its repeats."""

    at_s: float
    lane: str
    seconds: float


class SharedAnchor(NamedTuple):
    """Anchors on two lanes at once: when they were taken, on which lanes, and what each took."""

    at_s: float
    lanes: tuple[str, str]
    seconds: tuple[float, float]


class Anchors:
    """Times one-row verifications on any lane, whenever asked, and keeps all of them, those on two lanes as `shared`.

    `at_s` counts from when this was made; `dispatch_s` is what every visit took beyond the lane's own time, by lane.
    """

    def __init__(self, lanes: Mapping[str, Lane], *, context: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take them on lanes that hold the target; `context` is the number of cached tokens of the work."""
        self.samples: list[AnchorSample] = []
        self.shared: list[SharedAnchor] = []
        self.dispatch_s: defaultdict[str, list[float]] = defaultdict(list)
        self._lanes = lanes
        self._work = Measurement(part="verify", rows=1, context=context, repeats=_REPEATS, warm_up=0, is_aside=True)
        self._once = replace(self._work, repeats=1)
        self._after_others = replace(self._work, warm_up=_WARM_UP)
        self._step = replace(self._work, part="draft_step", repeats=_STEP_REPEATS)
        self._clock = clock
        self._start_s = clock()
        self._fresh: dict[str, tuple[float, float]] = {}
        self._last: str | None = None

    @property
    def now_s(self) -> float:
        """Seconds since this was made."""
        return self._clock() - self._start_s

    def take(self, lane: str) -> float:
        """Mean seconds of the work on a lane, now.

        Raises:
            LaneError: the lane was lost.
        """
        seconds = self._take(lane, self._work if self._last == lane else self._after_others)
        self._fresh[lane] = self.now_s, seconds
        return seconds

    def recent(self, lane: str) -> float:
        """The last anchor of a lane if it was taken just now, else a new one; errors as in `take`."""
        at_s, seconds = self._fresh.get(lane, (-_FRESH_S, 0.0))
        return seconds if self.now_s - at_s < _FRESH_S else self.take(lane)

    def take_one(self, lane: str) -> float:
        """The work once, in the middle of something else; errors as in `take`."""
        return self._take(lane, self._once)

    def take_step(self, lane: str) -> float:
        """Mean seconds of steps of the draft model on a lane, now, the first of which follows other work.

        Raises:
            LaneError: the lane was lost, or has no draft model.
        """
        return fmean(self.visit(lane, self._step))

    def take_shared(self, lanes: tuple[str, str]) -> tuple[float, float]:
        """The work once on two lanes at the same time; errors as in `take`.

        Two virtual cores are sometimes threads of one real core and sometimes two cores. How much lanes slow each other
        therefore changes within seconds, and their times alone do not show it.
        """
        at_s = self.now_s
        replies = [self._lanes[lane].request(Measure(measurement=self._once)) for lane in lanes]
        (first_s,), (second_s,) = (reply.result().value for reply in replies)
        self.shared.append(SharedAnchor(at_s, lanes, (first_s, second_s)))
        for lane in lanes:
            self._fresh.pop(lane, None)
        self._last = None
        return first_s, second_s

    def visit(self, lane: str, measurement: Measurement) -> list[float]:
        """Seconds of any part on a lane, without anchors; errors as in `take`."""
        self._fresh.pop(lane, None)
        self._last = lane
        start_s = time.perf_counter()
        answer = self._lanes[lane].request(Measure(measurement=measurement)).result()
        wall_s = time.perf_counter() - start_s
        self.dispatch_s[lane].append(wall_s - (answer.end_s - answer.start_s))
        return answer.value

    def _take(self, lane: str, work: Measurement) -> float:
        at_s = self.now_s
        self.samples.append(AnchorSample(at_s, lane, fmean(self.visit(lane, work))))
        return self.samples[-1].seconds
