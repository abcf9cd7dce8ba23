"""The lanes of the real world, for one sequence, and what drives a method over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from decoding.lanes import MethodFlow
from decoding.messages import Verdict, Window
from decoding.sequence import DecodedSequence
from decoding.trace import Trace
from runtime.lanes.lane_calls import DraftCalls, TargetCalls
from runtime.lanes.sequence_lanes import TraceWriter
from runtime.wire.operations import DrafterTraits, SequenceStart


class Listener(NamedTuple):
    """Who is called while a sequence is decoded: with each round's tokens; and between rounds, outside the trace."""

    on_tokens: Callable[[tuple[int, ...]], object] | None = None
    at_rest: Callable[[], object] | None = None


NOBODY: Final = Listener()


def drive(flow: MethodFlow, on_reply: Callable[[object], None] = lambda _reply: None) -> None:
    """Run a method to its end: wait for every handle it yields, tell `on_reply`, and send the reply back."""
    try:
        handle: Any = next(flow)
        while True:
            reply = handle.result()
            on_reply(reply)
            handle = flow.send(reply)
    except StopIteration:
        return
    finally:
        flow.close()


class RuntimeLanes:
    """Implements `decoding.lanes.Lanes`."""

    def __init__(
        self,
        *,
        target: TargetCalls,
        draft: DraftCalls | None,
        sequence: DecodedSequence,
        writer: TraceWriter,
        listener: Listener,
    ) -> None:
        self.target, self._draft, self._sequence, self._writer = target, draft, sequence, writer
        self._listener = listener

    @property
    def draft(self) -> DraftCalls:
        """The draft's lane."""
        assert self._draft is not None, "a method without a draft asks for it"
        return self._draft

    @property
    def unfinished(self) -> bool:
        """Whether the sequence wants more tokens."""
        return self._sequence.unfinished

    def prefill(self, start: SequenceStart, traits: DrafterTraits | None) -> None:
        """Read the prompt in both lanes: at once, or the draft after the target if it reads its features."""
        reads_features = traits is not None and start.schedule.reads_features
        reader = traits if reads_features else None
        self.target.prepare(start, reader)
        if self._draft is not None:
            self._draft.prepare(start)
        target_reply, draft_reply = self.target.prefill(start, reader), None
        if self._draft is not None and not reads_features:
            draft_reply = self._draft.prefill(start, None)
        num_tokens = len(start.prompt)
        answer = self.target.finish_prefill(target_reply, num_tokens)
        if self._draft is not None:
            draft_reply = draft_reply or self._draft.prefill(start, answer.value)
            self._draft.finish_prefill(draft_reply, num_tokens, answer.end_s - answer.start_s)
        self._writer.begin()

    def commit(self, window: Window, verdict: Verdict) -> None:
        """End the round: append the accepted tokens to the sequence and write it to the trace."""
        committed = self._sequence.commit(window, verdict)
        self._writer.end_round(window, verdict, len(committed))
        if self._draft is not None:
            self._draft.committed = committed
        if self._listener.on_tokens is not None:
            self._listener.on_tokens(committed)

    def rest(self, reply: object) -> None:
        """Rest if this reply leaves all lanes without work: a window does, and a verdict where there is no draft."""
        at_rest = self._listener.at_rest
        if at_rest is not None and isinstance(reply, Verdict if self._draft is None else Window):
            self._writer.pause(at_rest)

    def drop_draft(self) -> None:
        """The sequence has ended, for whatever reason: the draft stops preparing."""
        if self._draft is not None:
            self._draft.drop()

    def finish(self) -> Trace:
        """The whole trace."""
        self._writer.finish()
        return self._writer.trace
