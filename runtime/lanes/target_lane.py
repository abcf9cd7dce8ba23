"""The target's lane calls in the real world. One past its `Deadline` counts as hung: its lane is killed."""

from __future__ import annotations

from typing import Final, TypeVar

from decoding.errors import LaneTimeoutError
from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.lanes.lane import Lane, Pending, Reply
from runtime.lanes.sequence_lanes import TraceWriter
from runtime.wire.channel import Block
from runtime.wire.operations import (
    Answer,
    DrafterTraits,
    Operation,
    PrefillTarget,
    Prefix,
    PrepareTarget,
    SequenceStart,
    Stream,
    Suffix,
    Verify,
)

R = TypeVar("R")

_ROWS: Final = 64
"""Rows that take `least_s` once more."""
_PATIENCE: Final = 20
"""A machine under load, or one that swaps, is slow without hanging."""


class Deadline:
    """The time that the target's lane may take for an operation, in one sequence.

    It is `least_s * (1 + rows / 64)`, and at least 20 times the longest operation so far.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._longest_s = 0.0

    def of(self, num_rows: int) -> float:
        """Return the seconds for an operation over so many rows."""
        return max(self._least_s * (1 + num_rows / _ROWS), _PATIENCE * self._longest_s)

    def wait(self, lane: Lane, reply: Reply[R], num_rows: int) -> Answer[R]:
        """Return the lane's answer; raise `LaneTimeoutError` and end the lane if it is late, `LaneError` on failure."""
        try:
            answer = reply.result(self.of(num_rows))
        except LaneTimeoutError:
            lane.kill("it did not answer in time")
            raise
        self._longest_s = max(self._longest_s, answer.end_s - answer.start_s)
        return answer


class TargetCalls:
    """Implements `decoding.lanes.TargetLane`."""

    def __init__(self, lane: Lane, schedule: Schedule, writer: TraceWriter, deadline: Deadline) -> None:
        self._lane, self._schedule, self._writer, self._deadline = lane, schedule, writer, deadline
        self._num_rows = 1

    def prepare(self, start: SequenceStart, reader: DrafterTraits | None) -> None:
        """Compile what the sequence needs, where the device compiles; like loading, without a deadline."""
        if self._lane.spec.device.prepares:
            layers = () if reader is None else reader.feature_layers
            self._lane.request(PrepareTarget(start=start, feature_layers=layers)).result()

    def prefill(self, start: SequenceStart, reader: DrafterTraits | None) -> Reply[Block | None]:
        """Start a sequence; replies the features of the prompt that `reader` asks for."""
        operation = PrefillTarget(
            start=start,
            feature_layers=() if reader is None else reader.feature_layers,
            raw_features=reader is not None and reader.raw_features,
        )
        return self._lane.request(operation)

    def finish_prefill(self, reply: Reply[Block | None], num_tokens: int) -> Answer[Block | None]:
        """Wait for the target to read a prompt of so many tokens."""
        return self._deadline.wait(self._lane, reply, num_tokens)

    def verify(self, window: Window) -> Pending:
        """All layers over the window; replies `Verdict`."""
        reply = self._send(Verify(window=_without_alternatives(window)), window)
        return Pending(result=lambda: self._verdict(Work.VERIFY, reply))

    def stream(self, window: Window) -> Pending:
        """`verify` by a target that drafts the next window in the same pass; replies `Verdict` with `window`."""
        reply = self._send(Stream(window=_without_alternatives(window)), window)
        return Pending(result=lambda: self._verdict(Work.STREAM, reply))

    def prefix(self, window: Window, exit_layer: int) -> Pending:
        """Layers 1..exit_layer and the exit head; replies `ExitSignal`."""
        operation = Prefix(
            window=_without_alternatives(window),
            exit_layer=exit_layer,
            num_candidates=self._schedule.num_exit_candidates,
        )
        reply = self._send(operation, window)

        def result() -> ExitSignal:
            answer = self._answer(reply)
            self._writer.operation(self._lane.name, Work.PREFIX, answer, self._num_rows)
            self._writer.exit_message(answer)
            return answer.value

        return Pending(result=result)

    def suffix(self) -> Pending:
        """The remaining layers of the rows last given to `prefix`; replies `Verdict`."""
        reply = self._lane.request(Suffix())
        return Pending(result=lambda: self._verdict(Work.SUFFIX, reply))

    def _send(self, operation: Operation[R], window: Window) -> Reply[R]:
        self._num_rows = len(window.tokens) + 1
        reply = self._lane.request(operation)
        self._writer.begin_round(reply.sent_s)
        return reply

    def _answer(self, reply: Reply[R]) -> Answer[R]:
        return self._deadline.wait(self._lane, reply, self._num_rows)

    def _verdict(self, work: Work, reply: Reply[Verdict]) -> Verdict:
        answer = self._answer(reply)
        self._writer.operation(self._lane.name, work, answer, self._num_rows)
        return answer.value


def _without_alternatives(window: Window) -> Window:
    """Leave the alternatives out: they are of use to the draft alone."""
    return window._replace(alternatives=())
