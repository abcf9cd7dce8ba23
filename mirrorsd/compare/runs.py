"""What real runs leave: texts, traces, and how fast the machine was meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from calibrate.profiling.anchors import RunAnchors
from decoding.record import AcceptanceRecord
from decoding.trace import LaneEvent, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One prompt under one schedule, with its anchors; `given_up` is a first attempt that lost a lane, if any."""

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
    """Real runs by schedule, all beginning with the same prompts; `cuts` are none where texts are as recorded."""

    runs: tuple[tuple[Run, ...], ...] = field(repr=False)
    cuts: tuple[int, ...] = ()

    @property
    def num_prompts(self) -> int:
        """Prompts that were run, by the schedules that stayed to the end."""
        return max(map(len, self.runs))

    @property
    def traces(self) -> list[list[Trace]]:
        """The traces that count, for each schedule one per prompt."""
        return [[run.trace for run in row] for row in self.runs]

    def texts(self, record: AcceptanceRecord) -> AcceptanceRecord:
        """Return the prompts of a record that were run, with their texts as far as they were."""
        prompts = record.prompts[: self.num_prompts]
        if self.cuts:
            prompts = tuple(prompt.cut(cut) for prompt, cut in zip(prompts, self.cuts, strict=False))
        return replace(record, prompts=prompts)
