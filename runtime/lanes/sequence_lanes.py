"""The lanes of the real world, for one sequence."""

from __future__ import annotations

from collections.abc import Callable

from decoding.messages import Verdict, Window
from decoding.sequence import DecodedSequence
from runtime.lanes.draft_lane import DraftVerbs
from runtime.lanes.target_lane import TargetVerbs
from runtime.lanes.trace_writer import TraceWriter

OnTokens = Callable[[tuple[int, ...]], None]
"""Called with the tokens of every commit."""


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

    def commit(self, window: Window, verdict: Verdict) -> None:
        """End the round: append what stands to the sequence and write it to the trace."""
        committed = self._sequence.commit(window, verdict)
        self._writer.end_round(window, verdict, len(committed))
        if self._draft is not None:
            self._draft.committed = committed
        if self._on_tokens is not None:
            self._on_tokens(committed)
