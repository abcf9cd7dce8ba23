"""The target's verbs in the real world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.lanes.handles import Pending
from runtime.lanes.lane import Lane, Reply
from runtime.lanes.trace_writer import TraceWriter
from runtime.wire.channel import Message
from runtime.wire.wire_messages import read_signal, read_verdict, write_window


class TargetVerbs:
    """Implements `decoding.lanes.TargetLane`."""

    def __init__(self, lane: Lane, schedule: Schedule, writer: TraceWriter) -> None:
        self._lane = lane
        self._schedule = schedule
        self._writer = writer
        self._num_rows = 1

    def verify(self, window: Window) -> Pending:
        """All layers over the window; replies `Verdict`."""
        reply = self._send("verify", window, {})
        return Pending(result=lambda: self._verdict(Work.VERIFY, reply.result()))

    def stream(self, window: Window) -> Pending:
        """`verify` by a target that drafts the next window in the same pass; replies `Verdict` with `window`."""
        reply = self._send("stream", window, {})
        return Pending(result=lambda: self._verdict(Work.STREAM, reply.result()))

    def prefix(self, window: Window, exit_layer: int) -> Pending:
        """Layers 1..exit_layer and the exit head; replies `ExitSignal`."""
        fields = {"exit_layer": exit_layer, "num_candidates": self._schedule.num_exit_candidates}
        reply = self._send("prefix", window, fields)

        def result() -> ExitSignal:
            message = reply.result()
            self._writer.operation(self._lane.name, Work.PREFIX, message, self._num_rows)
            self._writer.exit_message(message)
            return read_signal(message)

        return Pending(result=result)

    def suffix(self) -> Pending:
        """The remaining layers of the rows last given to `prefix`; replies `Verdict`."""
        reply = self._lane.request("suffix")
        return Pending(result=lambda: self._verdict(Work.SUFFIX, reply.result()))

    def _send(self, op: str, window: Window, fields: Mapping[str, Any]) -> Reply:
        self._num_rows = len(window.tokens) + 1
        written = write_window(window._replace(alternatives=()))  # of use to the draft alone
        reply = self._lane.request(op, {**written.fields, **fields}, written.blocks)
        self._writer.begin_round(reply.sent_s)
        return reply

    def _verdict(self, work: Work, message: Message) -> Verdict:
        self._writer.operation(self._lane.name, work, message, self._num_rows)
        return read_verdict(message)
