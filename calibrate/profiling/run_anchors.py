"""Anchors of a sequence that is decoded: before it, between its rounds, and after it.

On lanes that work at the same time, anchors are taken at the same time too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from statistics import fmean
from typing import Final

from calibrate.profiling.anchors import Anchors
from decoding.schedule import Schedule
from decoding.trace import Trace
from runtime.lanes.sequence_lanes import Listener

_EVERY_S: Final = 0.12
"""Between two anchors while a sequence is decoded: a shared machine changes its speed within a run, which anchors
before and after it do not show (`machine` in benchmarks/results/demos.json has both)."""
_EVERY_ANCHORS: Final = 3
"""It is also at least so many times as long as an anchor: then anchors take a quarter of the time at most."""


@dataclass(frozen=True, slots=True)
class RunAnchors:
    """What anchors took in and around a run, in the order of time.

    `alone` is by lane, while the others had no work; `shared` on the lanes of target and draft at once, where the
    schedule has both work at once; `steps` are the draft model's.
    """

    alone: dict[str, tuple[float, ...]] = field(default_factory=dict)
    shared: tuple[tuple[float, float], ...] = ()
    steps: tuple[float, ...] = ()

    def slowdown(self, schedule: Schedule) -> tuple[float, float] | None:
        """Mean time of anchors at once over that of those alone, for (target, draft); None without any of either."""
        if not self.shared or schedule.draft_lane is None:
            return None
        target, draft = (self.alone.get(lane) for lane in (schedule.target_lane, schedule.draft_lane))
        if not target or not draft:
            return None
        first, second = zip(*self.shared, strict=True)
        return fmean(first) / fmean(target), fmean(second) / fmean(draft)


def decode_with_anchors(
    anchors: Anchors, schedule: Schedule, generate: Callable[[Listener], Trace]
) -> tuple[Trace, RunAnchors]:
    """A sequence with its anchors: `generate` decodes it, and has the listener called.

    Raises:
        LaneError: a lane was lost.
    """
    taking = _Taking(anchors, schedule)
    taking.around(anchors.recent)
    trace = generate(Listener(at_rest=taking.rest))
    taking.around(anchors.take)
    taking.step()  # before the sequence another drafter may be loaded
    return trace, taking.taken


def lanes_of(schedule: Schedule) -> tuple[str, ...]:
    """Lanes that a schedule uses, the target's first."""
    return tuple(dict.fromkeys((schedule.target_lane, schedule.draft_lane or schedule.target_lane)))


class _Taking:
    """Takes anchors whenever the sequence rests and the last ones were long ago: of its lanes in turn."""

    def __init__(self, anchors: Anchors, schedule: Schedule) -> None:
        self._anchors = anchors
        self._alone: dict[str, list[float]] = {lane: [] for lane in lanes_of(schedule)}
        self._shared: list[tuple[float, float]] = []
        self._steps: list[float] = []
        self._drafts_on = schedule.draft_lane if schedule.traits.has_draft_model else None
        self._pair: tuple[str, str] | None = None
        if schedule.traits.overlaps and schedule.draft_lane not in (None, schedule.target_lane):
            assert schedule.draft_lane is not None, "looked at"
            self._pair = schedule.target_lane, schedule.draft_lane
        self._turns, self._next_s = cycle(self._order()), anchors.now_s + _EVERY_S

    @property
    def taken(self) -> RunAnchors:
        """All of them."""
        alone = {lane: tuple(own) for lane, own in self._alone.items()}
        return RunAnchors(alone, tuple(self._shared), tuple(self._steps))

    def around(self, take: Callable[[str], float]) -> None:
        """Before the sequence, or after it: those of every lane alone are the nearest to what else is done there."""
        for lane, own in self._alone.items():
            own.append(take(lane))
        self._take_shared()

    def step(self) -> None:
        """Steps of the draft model, which are short: whenever anything else is taken."""
        if self._drafts_on is not None:
            self._steps.append(self._anchors.take_step(self._drafts_on))

    def rest(self) -> None:
        """The sequence rests."""
        start_s = self._anchors.now_s
        if start_s < self._next_s:
            return
        next(self._turns)()
        self.step()
        now_s = self._anchors.now_s
        self._next_s = now_s + max(_EVERY_S, _EVERY_ANCHORS * (now_s - start_s))

    def _order(self) -> Iterator[Callable[[], object]]:
        """Every lane alone, and before each of them both at once."""
        for lane in self._alone:
            if self._pair is not None:
                yield self._take_shared
            yield partial(self._take_one, lane)

    def _take_one(self, lane: str) -> None:
        self._alone[lane].append(self._anchors.take_one(lane))

    def _take_shared(self) -> None:
        if self._pair is not None:
            self._shared.append(self._anchors.take_shared(self._pair))
