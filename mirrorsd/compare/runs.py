"""What real runs leave: texts, traces, and how fast the machine was meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from calibrate.profiling.run_anchors import RunAnchors
from decoding.trace import LaneEvent, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One prompt under one schedule.

    Attributes:
        trace: what happened.
        tokens: the text.
        at_s: when it began, from the start of the runs.
        anchors: what anchors took right before it, in it, and right after.
        given_up: the trace of a first attempt that lost a lane, and therefore does not count; None if there was none.
    """

    trace: Trace = field(repr=False)
    tokens: tuple[int, ...] = ()
    at_s: float = 0.0
    anchors: RunAnchors = field(default_factory=RunAnchors)
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
