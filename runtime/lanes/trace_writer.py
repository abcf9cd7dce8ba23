"""Turns what lanes report about their own time into a trace; rounds begin and end by the driver's clock."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from decoding.messages import Verdict, Window
from decoding.trace import LaneEvent, Span, Trace, Work
from runtime.wire.operations import Answer, Spans


class TraceWriter:
    """Writes one sequence's trace; all processes of a machine share the clock (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.trace = Trace(world="measured")
        self._origin_s = time.perf_counter()
        self._signal_ready_s = 0.0

    def begin(self) -> None:
        """Decoding starts now; what happened until now was prefill."""
        self.trace.prefill_s = time.perf_counter() - self._origin_s
        self._origin_s = time.perf_counter()

    def pause(self, action: Callable[[], object]) -> None:
        """Do something else between two rounds, while no lane works: the trace goes on as if it had taken no time."""
        start_s = time.perf_counter()
        action()
        self._origin_s += time.perf_counter() - start_s

    def operation(self, lane: str, work: Work, answer: Answer[Any], rows: int) -> None:
        """An operation of the target, at the times its answer gives."""
        self._span(lane, work, answer.start_s, answer.end_s, rows)

    def steps(self, lane: str, spans: Spans) -> None:
        """Steps of the draft, as it timed them."""
        for work, start_s, end_s, rows in spans:
            self._span(lane, Work(work), start_s, end_s, rows)

    def exit_message(self, answer: Answer[Any]) -> None:
        """The exit message has left the target's lane."""
        self._signal_ready_s = answer.end_s

    def transfer(self, origin: str, destination: str, rows: int) -> None:
        """The exit message has been handed to the draft's lane."""
        self._span(f"{origin}->{destination}", Work.TRANSFER, self._signal_ready_s, time.perf_counter(), rows)

    def begin_round(self, sent_s: float) -> None:
        """The window was handed to the target."""
        self.trace.begin_round(sent_s - self._origin_s)

    def end_round(self, window: Window, verdict: Verdict, num_committed: int) -> None:
        """The verdict is committed."""
        self.trace.decode_s = time.perf_counter() - self._origin_s
        self.trace.end_round(self.trace.decode_s, window, verdict, num_committed)

    def event(self, lane: str, text: str) -> None:
        """Something a user should know."""
        self.trace.events.append(LaneEvent(time.perf_counter() - self._origin_s, lane, text))

    def finish(self) -> None:
        """Sort the spans, give each the round whose verdict comes next, and drop what started after the last commit."""
        trace = self.trace
        ends = [entry.end_s for entry in trace.rounds]
        kept = sorted((span for span in trace.spans if ends and span.start_s < ends[-1]), key=lambda span: span.start_s)
        trace.spans[:] = [span._replace(round=bisect_right(ends, span.start_s)) for span in kept]

    def _span(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        origin_s = self._origin_s
        self.trace.spans.append(Span(lane, work, start_s - origin_s, end_s - origin_s, 0, rows))
