"""The draft's lane calls in the real world.

A draft lane that is dead, hangs, is too late or fails is lost: it is ended, the trace records that, and from then on it
offers nothing, without being waited for. A draft in the target's own lane cannot be lost alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self, TypeVar

from decoding.errors import ConfigError, LaneError
from decoding.messages import NO_WINDOW, ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from runtime.lanes.lane import Lane, Pending, Reply
from runtime.lanes.lane_calls import Deadline
from runtime.lanes.sequence_lanes import TraceWriter
from runtime.wire.channel import Block
from runtime.wire.operations import (
    Branch,
    Drafted,
    DrafterTraits,
    Drop,
    Join,
    PrefillDraft,
    PrepareDraft,
    Rollout,
    SequenceStart,
    Take,
)

DRAFT_LOAD_DEADLINE_S: Final = 600.0
"""A draft lane that loads or compiles for so long hangs: 8 billion weights take a tenth of it."""

R = TypeVar("R")


class DraftCalls:
    """Implements `decoding.lanes.DraftLane` and `Branches`: the branches themselves are in the draft's lane."""

    def __init__(
        self, lane: Lane, schedule: Schedule, writer: TraceWriter, *, deadline_s: float, target_deadline: Deadline
    ) -> None:
        """Args: its lane; how; of the trace; how long it is waited for in a lane of its own, and in the target's."""
        self._lane, self._schedule, self._writer, self._deadline_s = lane, schedule, writer, deadline_s
        self._target_deadline = target_deadline
        self._is_lost = False
        self.committed: Sequence[int] = ()
        """Tokens of the last commit: a rollout starts after them."""

    def prepare(self, start: SequenceStart) -> None:
        """Have compiled what the sequence needs, where the device compiles: that takes as long as loading."""
        if self._is_lost or not self._lane.spec.device.prepares:
            return
        try:
            self._lane.request(PrepareDraft(start=start)).result(DRAFT_LOAD_DEADLINE_S)
        except LaneError as error:
            if self._schedule.is_pooled:
                raise
            self.lose(error)

    def prefill(self, start: SequenceStart, features: Block | None) -> Reply[None]:
        """Start a sequence; `finish_prefill` waits for it."""
        return self._lane.request(PrefillDraft(start=start, features=features))

    def finish_prefill(self, reply: Reply[None], num_tokens: int, target_s: float) -> None:
        """Wait for the draft to read a prompt of so many tokens, longer by what the target took for it."""
        self._answer(reply, extra_s=target_s, num_rows=num_tokens)

    def rollout(self, verdict: Verdict | None = None) -> Pending:
        """Draft a window serially from the committed text; replies `Window`."""
        features = None if verdict is None else verdict.features
        reply = self._lane.request(Rollout(committed=tuple(self.committed), features=features))
        return Pending(result=lambda: self._window(reply))

    def branch(self, window: Window) -> Self:
        """Start preparing for the outcomes of `window`, the one last drafted."""
        if window.tokens:
            self._lane.post(Branch())
        return self

    def join(self, signal: ExitSignal) -> None:
        """Add the exit's roots to the branches under way."""
        if self._is_lost:
            return
        self._lane.post(Join(signal=signal))
        self._writer.transfer(self._schedule.target_lane, self._lane.name, len(signal.candidates))

    def take(self, verdict: Verdict) -> Pending:
        """The window after a verdict, from a branch or afresh; replies `Window`."""
        reply = self._lane.request(Take(num_accepted=verdict.num_accepted, next_token=verdict.next_token))
        return Pending(result=lambda: self._window(reply))

    def drop(self) -> None:
        """The sequence has ended: stop preparing. A lane that is lost by now takes nothing with it: no error."""
        if self._is_lost:
            return
        try:
            spans = self._answer(self._lane.request(Drop()))
        except LaneError as error:
            self._writer.event(self._lane.name, f"{error}, after the sequence had ended")
            return
        if spans is not None:
            self._writer.steps(self._lane.name, spans)

    def _window(self, reply: Reply[Drafted]) -> Window:
        drafted = self._answer(reply)
        if drafted is None:
            return NO_WINDOW
        self._writer.steps(self._lane.name, drafted.spans)
        if drafted.hit is not None:
            self._writer.trace.mark_hit(hit=drafted.hit)
        return drafted.window

    def _answer(self, reply: Reply[R], *, extra_s: float = 0.0, num_rows: int | None = None) -> R | None:
        if self._schedule.is_pooled:
            rows = self._schedule.num_rows if num_rows is None else num_rows
            return self._target_deadline.wait(self._lane, reply, rows).value
        if self._is_lost:
            return None
        try:
            return reply.result(self._deadline_s + extra_s).value
        except LaneError as error:
            self.lose(error)
            return None

    def lose(self, error: LaneError) -> None:
        """Give the draft up, also where only an operation failed: what it left half done is nothing to go on from."""
        self._lane.kill("its draft was given up")
        self._is_lost = True
        self._writer.event(self._lane.name, f"{error}; the target goes on alone")


def require_fitting(schedule: Schedule, traits: DrafterTraits) -> None:
    """Raise `ConfigError` where the schedule asks for what the drafter is not for."""
    if schedule.method not in traits.methods:
        raise ConfigError(
            f"method is {schedule.method}, but the drafter {traits.folder.name} is one for "
            f"{' or '.join(traits.methods)}"
        )
    layers = traits.feature_layers
    if schedule.exit_features and not layers:
        raise ConfigError("exit_features is true, but this draft reads no features of its target")
    if schedule.exit_features and schedule.exit_layer is not None and max(layers) > schedule.exit_layer:
        raise ConfigError(
            f"exit_layer is {schedule.exit_layer}, but this draft reads features of layers {list(layers)}"
        )
