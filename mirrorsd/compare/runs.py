"""What real runs leave: texts, traces, and how fast the machine was around each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from decoding.trace import LaneEvent, Trace

Work = Literal["anchor", "plain"]
"""A verification of one row in a loop, or a short plain decoding."""


class SpeedSample(NamedTuple):
    """Known work that was timed on a lane.

    Attributes:
        at_s: when, from the start of the runs.
        seconds: of one step.
    """

    work: Work
    lane: str
    at_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One prompt under one schedule.

    Attributes:
        trace: what happened.
        tokens: the text.
        at_s: when it began, from the start of the runs.
        around: what was timed on the schedule's lanes right before and right after.
        given_up: the trace of a first attempt that lost a lane, and therefore does not count; None if there was none.
    """

    trace: Trace = field(repr=False)
    tokens: tuple[int, ...] = ()
    at_s: float = 0.0
    around: tuple[SpeedSample, ...] = ()
    given_up: Trace | None = field(default=None, repr=False)

    @property
    def events(self) -> Iterator[LaneEvent]:
        """Lanes that were lost, in both attempts."""
        for trace in (self.given_up, self.trace):
            yield from trace.events if trace is not None else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What real runs gave.

    Attributes:
        runs: for each schedule one per prompt, of the same prompts.
    """

    runs: tuple[tuple[Run, ...], ...] = field(repr=False)

    @property
    def num_prompts(self) -> int:
        """Prompts that every schedule has answered."""
        return min(map(len, self.runs))

    @property
    def traces(self) -> list[list[Trace]]:
        """The traces that count, for each schedule one per prompt."""
        return [[run.trace for run in row] for row in self.runs]
