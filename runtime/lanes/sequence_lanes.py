"""The lanes of the real world, for one sequence, and what drives a method over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding.lanes import MethodFlow
from decoding.messages import Verdict, Window
from decoding.sequence import DecodedSequence
from decoding.trace import Trace
from runtime.lanes.draft_lane import DraftVerbs
from runtime.lanes.target_lane import TargetVerbs
from runtime.lanes.trace_writer import TraceWriter
from runtime.wire.operations import DrafterTraits, SequenceStart

OnTokens = Callable[[tuple[int, ...]], None]
"""Called with the tokens of every commit."""


def drive(flow: MethodFlow) -> None:
    """Run a method to its end: wait for every handle it yields and send its reply back.

    What a handle raises comes out here.
    """
    try:
        handle: Any = next(flow)
        while True:
            handle = flow.send(handle.result())
    except StopIteration:
        return
    finally:
        flow.close()


class RuntimeLanes:
    """Implements `decoding.lanes.Lanes`."""

    def __init__(
        self,
        *,
        target: TargetVerbs,
        draft: DraftVerbs | None,
        sequence: DecodedSequence,
        writer: TraceWriter,
        on_tokens: OnTokens | None = None,
    ) -> None:
        self.target = target
        self._draft = draft
        self._sequence = sequence
        self._writer = writer
        self._on_tokens = on_tokens

    @property
    def draft(self) -> DraftVerbs:
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
        if self._on_tokens is not None:
            self._on_tokens(committed)

    def drop_draft(self) -> None:
        """The sequence has ended, for whatever reason: the draft stops preparing."""
        if self._draft is not None:
            self._draft.drop()

    def finish(self) -> Trace:
        """The whole trace."""
        self._writer.finish()
        return self._writer.trace
