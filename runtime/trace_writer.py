"""Turns what lanes report about their own time into a trace. No clock is read here but the one of the origin."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import Literal

from decoding.messages import Verdict, Window
from decoding.trace import LaneEvent, Span, Trace, Work
from runtime.lane import Reply
from runtime.wire import Message

Cargo = Literal["window", "signal", "verdict"]
"""What lanes send each other."""


class TraceWriter:
    """Writes one sequence's trace; all processes of a machine share the clock (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.trace = Trace(world="measured")
        self._origin_s = time.perf_counter()
        self._ready_s: dict[Cargo, float] = {}

    def begin(self) -> None:
        """Decoding starts now; what happened until now was prefill."""
        self.trace.prefill_s = time.perf_counter() - self._origin_s
        self._origin_s = time.perf_counter()

    def operation(self, lane: str, work: Work, message: Message, rows: int) -> None:
        """An operation of the target, as its answer tells."""
        start_s, end_s = message.fields["start_s"], message.fields["end_s"]
        self._span(lane, work, start_s, end_s, rows)

    def steps(self, lane: str, message: Message) -> None:
        """The draft's steps, as the answer that ended them tells."""
        for work, start_s, end_s, rows in message.fields["spans"]:
            self._span(lane, Work(work), start_s, end_s, rows)

    def ready(self, cargo: Cargo, message: Message) -> None:
        """A reply has left its lane."""
        self._ready_s[cargo] = message.fields["end_s"]

    def transfer(self, cargo: Cargo, lanes: tuple[str, str], arrived_s: float, rows: int) -> None:
        """The reply last `ready` has reached another lane; in a pooled placement nothing is transferred."""
        origin, destination = lanes
        if origin != destination:
            self._span(f"{origin}->{destination}", Work.TRANSFER, self._ready_s[cargo], arrived_s, rows)

    def begin_round(self, message: Message) -> None:
        """The round's first operation has started."""
        self.trace.begin_round(message.fields["start_s"] - self._origin_s)

    def end_round(self, window: Window, verdict: Verdict, num_committed: int) -> None:
        """The verdict last ready is committed."""
        end_s = self._ready_s["verdict"] - self._origin_s
        self.trace.end_round(end_s, window, verdict, num_committed)
        self.trace.decode_s = time.perf_counter() - self._origin_s

    def event(self, lane: str, text: str) -> None:
        """Something a user should know."""
        self.trace.events.append(LaneEvent(time.perf_counter() - self._origin_s, lane, text))

    def finish(self) -> None:
        """Sort the spans, give each its round, and leave out what started after the last commit.

        A span belongs to the round whose verdict is the next to come: a fresh rollout after a miss belongs to
        the round it drafts for.
        """
        trace = self.trace
        ends = [entry.end_s for entry in trace.rounds]
        kept = sorted((span for span in trace.spans if ends and span.start_s < ends[-1]), key=lambda span: span.start_s)
        trace.spans[:] = [span._replace(round=bisect_right(ends, span.start_s)) for span in kept]

    def _span(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        origin_s = self._origin_s
        self.trace.spans.append(Span(lane, work, start_s - origin_s, end_s - origin_s, 0, rows))


def arrival_s(reply: Reply, message: Message) -> float:
    """When a request reached its lane: as the lane saw it if it was waiting, else when it was handed over."""
    received_s: float | None = message.fields["received_s"]
    return reply.sent_s if received_s is None else received_s
