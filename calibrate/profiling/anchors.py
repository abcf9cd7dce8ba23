"""Takes anchors: times of one fixed short pass, to which all other times are compared as the machine's speed changes.

A decoded sequence has anchors before it, between its rounds, and after it. Lanes that work at the same time also have
shared anchors, taken on both at the same time.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from decoding.errors import LaneError, MemoryFitError
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Trace
from runtime.wire.measurement import Measurement
from runtime.wire.stops import STOPS

if TYPE_CHECKING:  # code that only reads samples must not import the libraries that lanes need
    from calibrate.profiling.samples import Samples
    from runtime.lanes.lane import Lane, Reply
    from runtime.lanes.sequence_lanes import Listener
    from runtime.wire.operations import TimedReply

R = TypeVar("R")
_WARM_UP: Final = 1
"""Untimed passes before an anchor: the first pass after other work takes 1.10 times as long as the consecutive passes
of decoding, the next ones 1.00 (1,219 cached tokens, eight rounds on a Zen 5). Anchors represent the latter."""
_FRESH_S: Final = 0.3
"""Greatest age at which an anchor may serve as the one before the next work, if its lane was idle since."""
_EVERY_S: Final = 0.12
"""Least time between two anchors while a sequence is decoded: a shared machine changes its speed within a run, which
anchors before and after it do not show (`machine` in benchmarks/results/demos.json has both)."""
_EVERY_ANCHORS: Final = 3
"""The time between two anchors is at least so many anchors long, so that they take a quarter of the time at most."""
_HANGS_S: Final = 600.0
"""A lane that owes an anchor for so long hangs. The first one may take long: it compiles the target, as loading a draft
may."""

MOST_TAKES: Final = 3
"""A measurement during which this process was stopped is repeated, up to so many takes; the last one counts anyway."""


class AnchorSample(NamedTuple):
    """One anchor: when it was taken, on which lane, and its time."""

    at_s: float
    lane: str
    seconds: float


class SharedAnchor(NamedTuple):
    """Anchors on two lanes at once: when they were taken, on which lanes, and the time of each."""

    at_s: float
    lanes: tuple[str, str]
    seconds: tuple[float, float]


class _Timed(NamedTuple):
    at_s: float
    wall_s: float
    answers: "list[TimedReply[list[float]]]"


class Anchors:
    """Times one-row verifications on any lane and keeps all of them; those on two lanes at once in `shared`.

    Times `at_s` count from construction, or continue those of an earlier calibration (`go_on_after`). `dispatch_s`: for
    each lane and visit, the wall time beyond the lane's own time. All timing methods raise `LaneError` for a lost lane.
    """

    def __init__(
        self, lanes: "Mapping[str, Lane]", *, context: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare for `lanes`, which hold the target; `context`: cached tokens of the anchor's pass."""
        self.samples: list[AnchorSample] = []
        self.shared: list[SharedAnchor] = []
        self.dispatch_s: defaultdict[str, list[float]] = defaultdict(list)
        self._lanes = lanes
        self._work = Measurement(part="verify", rows=1, context=context, repeats=1, warm_up=_WARM_UP, is_aside=True)
        self._clock = clock
        self._start_s = clock()
        self._fresh: dict[str, tuple[float, float]] = {}

    @property
    def now_s(self) -> float:
        """Seconds since construction, plus those of the earlier calibration that this one continues."""
        return self._clock() - self._start_s

    def go_on_after(self, earlier: "Samples") -> None:
        """Continue the anchors of an interrupted calibration, as if no time lay between."""
        self.samples[:0], self.shared[:0] = earlier.anchors, earlier.shared_anchors
        self.dispatch_s.update(earlier.dispatch_s)
        self._start_s -= max((one.at_s for one in earlier.anchors), default=0.0)

    def take(self, lane: str) -> float:
        """Take an anchor on a lane now; return its seconds."""
        at_s, repeats = self._visit(lane, self._work, _HANGS_S)
        seconds = fmean(repeats)
        self.samples.append(AnchorSample(at_s, lane, seconds))
        self._fresh[lane] = self.now_s, seconds
        return seconds

    def recent(self, lane: str) -> float:
        """Return the last anchor of a lane if it is fresh (`_FRESH_S`), else take a new one."""
        at_s, seconds = self._fresh.get(lane, (-_FRESH_S, 0.0))
        return seconds if self.now_s - at_s < _FRESH_S else self.take(lane)

    def take_shared(self, lanes: tuple[str, str]) -> tuple[float, float]:
        """Take an anchor on two lanes at the same time.

        How much two lanes slow each other down can change within seconds, which their times alone do not show: two
        virtual cores are sometimes two cores and sometimes two threads of one.
        """
        timed = self._timed(lanes, self._work, _HANGS_S)
        (first_s,), (second_s,) = (answer.value for answer in timed.answers)
        self.shared.append(SharedAnchor(timed.at_s, lanes, (first_s, second_s)))
        return first_s, second_s

    def visit(self, lane: str, measurement: Measurement) -> list[float]:
        """Time any part on a lane without taking anchors; return the seconds of each repeat."""
        return self._visit(lane, measurement, None)[1]

    def lay_out_again(self, lane: str) -> None:
        """Undo the effect of an anchor on the next one-row pass of the sequence being decoded."""
        from runtime.target.target_model import TargetModel

        self._answer(lane, self._lanes[lane].request(TargetModel.lay_out_again), _HANGS_S)

    def _visit(self, lane: str, measurement: Measurement, timeout_s: float | None) -> tuple[float, list[float]]:
        timed = self._timed((lane,), measurement, timeout_s)
        (answer,) = timed.answers
        self.dispatch_s[lane].append(timed.wall_s - (answer.end_s - answer.start_s))
        return timed.at_s, answer.value

    def _timed(self, lanes: Sequence[str], measurement: Measurement, timeout_s: float | None) -> "_Timed":
        """Time a part on some lanes at once; repeat it if this process was stopped meanwhile."""
        from runtime.worker.timing import MeasureRole

        for lane in lanes:
            self._fresh.pop(lane, None)
        for _ in range(MOST_TAKES):
            at_s, start_s, stopped_s = self.now_s, time.perf_counter(), STOPS.total_s
            replies = [self._lanes[lane].request(MeasureRole.measure, measurement) for lane in lanes]
            answers = [self._answer(lane, reply, timeout_s) for lane, reply in zip(lanes, replies, strict=True)]
            timed = _Timed(at_s, time.perf_counter() - start_s, answers)
            if STOPS.total_s == stopped_s:
                break
        return timed

    def is_alive(self, lane: str) -> bool:
        """Return whether a lane is not known to be lost."""
        return self._lanes[lane].is_alive

    def _answer(self, lane: str, reply: "Reply[R]", timeout_s: float | None) -> "TimedReply[R]":
        """Return a lane's answer; kill a lane that fails or is late, and raise its error."""
        try:
            return reply.result(timeout_s)
        except (LaneError, MemoryFitError) as error:
            self._lanes[lane].kill(f"nothing could be timed, {error}")
            raise


@dataclass(frozen=True, slots=True)
class RunAnchors:
    """Times of the anchors in and around a run, in order.

    Attributes:
        alone: by lane, taken while other lanes were idle.
        shared: (target's lane, draft's lane), taken on both at once; only for schedules whose lanes overlap.
    """

    alone: dict[str, tuple[float, ...]] = field(default_factory=dict)
    shared: tuple[tuple[float, float], ...] = ()

    def slowdown(self, schedule: Schedule) -> tuple[float, float] | None:
        """Return the slowdown of (target's, draft's) anchors while both lanes work; None if anchors are missing."""
        if not self.shared or schedule.draft_lane is None:
            return None
        target, draft = (self.alone.get(lane) for lane in (schedule.target_lane, schedule.draft_lane))
        if not target or not draft:
            return None
        first, second = zip(*self.shared, strict=True)
        return fmean(first) / fmean(target), fmean(second) / fmean(draft)


def decode_with_anchors(
    anchors: Anchors, schedule: Schedule, generate: "Callable[[Listener], Trace]"
) -> tuple[Trace, RunAnchors]:
    """Decode a sequence and take its anchors; `generate` decodes it and calls the listener between rounds.

    Raises `LaneError` if any lane was lost, also the draft's.
    """
    taking = _Taking(anchors, schedule)
    found = taking.decode(generate)
    if taking.loss is not None:
        raise taking.loss
    return found


def decode_past_a_loss(
    anchors: Anchors, schedule: Schedule, generate: "Callable[[Listener], Trace]"
) -> tuple[Trace, RunAnchors]:
    """Do as `decode_with_anchors`, but continue without a lost draft lane; the loss is an event of the trace."""
    taking = _Taking(anchors, schedule)
    trace, taken = taking.decode(generate)
    if taking.loss is not None and not trace.has_loss:
        trace.events.append(LaneEvent(trace.decode_s, taking.lanes[1], f"{taking.loss}; no anchors were taken on it"))
    return trace, taken


def lanes_of(schedule: Schedule) -> tuple[str, ...]:
    """Return the lanes that a schedule uses, the target's first."""
    return tuple(dict.fromkeys((schedule.target_lane, schedule.draft_lane or schedule.target_lane)))


class _Taking:
    """Takes the anchors of one decoded sequence: before, after, and between rounds, where its lanes take turns.

    Once the draft's lane is lost (`loss`), only the target's lane has anchors.
    """

    def __init__(self, anchors: Anchors, schedule: Schedule) -> None:
        self.lanes = lanes = lanes_of(schedule)
        self.loss: LaneError | MemoryFitError | None = None
        self.alone: dict[str, list[float]] = {lane: [] for lane in lanes}
        self.shared = list[tuple[float, float]]()
        self._anchors = anchors
        self._is_plain = schedule.num_rows == 1
        self._pair = (lanes[0], lanes[1]) if schedule.traits.overlaps and len(lanes) > 1 else None
        self._turns, self._next_s = cycle(self._order()), anchors.now_s + _EVERY_S

    def decode(self, generate: "Callable[[Listener], Trace]") -> tuple[Trace, RunAnchors]:
        """Decode a sequence with anchors before it, between its rounds, and after it."""
        from runtime.lanes.sequence_lanes import Listener

        self.around(self._anchors.recent)
        trace = generate(Listener(at_rest=self.rest))
        self.around(self._anchors.take)
        alone = {lane: tuple(own) for lane, own in self.alone.items()}
        return trace, RunAnchors(alone, tuple(self.shared))

    def around(self, take: Callable[[str], float]) -> None:
        """Take the anchors before or after the sequence: each lane alone, then both at once."""
        for lane in self.alone:
            self._take_alone(take, lane)
        self._take_shared()

    def rest(self) -> None:
        """Take the next anchor between two rounds, if the last one was long enough ago."""
        start_s = self._anchors.now_s
        if start_s < self._next_s:
            return
        next(self._turns)()
        if self._is_plain:
            with self._past_a_loss():
                self._anchors.lay_out_again(self.lanes[0])
        now_s = self._anchors.now_s
        self._next_s = now_s + max(_EVERY_S, _EVERY_ANCHORS * (now_s - start_s))

    def _order(self) -> Iterator[Callable[[], object]]:
        """Yield the anchors of one cycle: each lane alone, and before each of them both at once."""
        for lane in self.alone:
            if self._pair is not None:
                yield self._take_shared
            yield partial(self._take_alone, self._anchors.take, lane)

    def _take_alone(self, take: Callable[[str], float], lane: str) -> None:
        if self.loss is None or lane == self.lanes[0]:
            with self._past_a_loss():
                self.alone[lane].append(take(lane))

    def _take_shared(self) -> None:
        if self.loss is None and self._pair is not None:
            with self._past_a_loss():
                self.shared.append(self._anchors.take_shared(self._pair))

    @contextmanager
    def _past_a_loss(self) -> Iterator[None]:
        """Store an error of the body as the draft's `loss`; re-raise it if the target's lane is lost."""
        try:
            yield
        except (LaneError, MemoryFitError) as error:
            if not self._anchors.is_alive(self.lanes[0]):
                raise
            self.loss = error
