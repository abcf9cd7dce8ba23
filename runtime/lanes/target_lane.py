"""The target's verbs in the real world."""

from __future__ import annotations

from typing import TypeVar

from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.lanes.lane import Lane, Pending, Reply
from runtime.lanes.trace_writer import TraceWriter
from runtime.wire.channel import Block
from runtime.wire.operations import (
    Answer,
    DrafterTraits,
    Operation,
    PrefillTarget,
    Prefix,
    SequenceStart,
    Stream,
    Suffix,
    Verify,
)

R = TypeVar("R")


class TargetVerbs:
    """Implements `decoding.lanes.TargetLane`."""

    def __init__(self, lane: Lane, schedule: Schedule, writer: TraceWriter) -> None:
        self._lane = lane
        self._schedule = schedule
        self._writer = writer
        self._num_rows = 1

    def prefill(self, start: SequenceStart, reader: DrafterTraits | None) -> Reply[Block | None]:
        """Start a sequence; replies the features of the prompt that `reader` asks for."""
        operation = PrefillTarget(
            start=start,
            feature_layers=() if reader is None else reader.feature_layers,
            raw_features=reader is not None and reader.raw_features,
        )
        return self._lane.request(operation)

    def verify(self, window: Window) -> Pending:
        """All layers over the window; replies `Verdict`."""
        reply = self._send(Verify(window=_without_alternatives(window)), window)
        return Pending(result=lambda: self._verdict(Work.VERIFY, reply.result()))

    def stream(self, window: Window) -> Pending:
        """`verify` by a target that drafts the next window in the same pass; replies `Verdict` with `window`."""
        reply = self._send(Stream(window=_without_alternatives(window)), window)
        return Pending(result=lambda: self._verdict(Work.STREAM, reply.result()))

    def prefix(self, window: Window, exit_layer: int) -> Pending:
        """Layers 1..exit_layer and the exit head; replies `ExitSignal`."""
        operation = Prefix(
            window=_without_alternatives(window),
            exit_layer=exit_layer,
            num_candidates=self._schedule.num_exit_candidates,
        )
        reply = self._send(operation, window)

        def result() -> ExitSignal:
            answer = reply.result()
            self._writer.operation(self._lane.name, Work.PREFIX, answer, self._num_rows)
            self._writer.exit_message(answer)
            return answer.value

        return Pending(result=result)

    def suffix(self) -> Pending:
        """The remaining layers of the rows last given to `prefix`; replies `Verdict`."""
        reply = self._lane.request(Suffix())
        return Pending(result=lambda: self._verdict(Work.SUFFIX, reply.result()))

    def _send(self, operation: Operation[R], window: Window) -> Reply[R]:
        self._num_rows = len(window.tokens) + 1
        reply = self._lane.request(operation)
        self._writer.begin_round(reply.sent_s)
        return reply

    def _verdict(self, work: Work, answer: Answer[Verdict]) -> Verdict:
        self._writer.operation(self._lane.name, work, answer, self._num_rows)
        return answer.value


def _without_alternatives(window: Window) -> Window:
    """They are of use to the draft alone."""
    return window._replace(alternatives=())
