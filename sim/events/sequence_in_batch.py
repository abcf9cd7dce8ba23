"""One place of a simulated batch: the state of its sequence, and lanes that forward the method's calls to the batch."""

from typing import TYPE_CHECKING

from decoding.messages import ExitSignal, Verdict, Window
from decoding.trace import Trace
from sim.acceptance.branch_hits import MISS
from sim.acceptance.joined_record import NO_TOKEN
from sim.acceptance.shortened import WINDOWS, require_drafted, require_no_draft, require_unfinished

if TYPE_CHECKING:
    from sim.events.simulated_batch import SimulatedBatch


class SequenceInBatch:
    """Implements `decoding.lanes.Lanes` (target, draft and branches in one object) for one sequence of a batch.

    When the sequence ends, another prompt takes its place; to the method all of them are one sequence, and a new prompt
    starts without a branch. `is_awaited`: the batch runs until this sequence has ended.

    Attributes:
        at: index of the sequence's position among the positions of all texts.
        place: index of its context in the range of contexts.
        num_drafted: tokens in its window, or as many of them as it verifies.
        num_accepted, source: of the last round: accepted tokens, and the source of the branch with the outcome.
    """

    def __init__(self, batch: "SimulatedBatch", prompt: int, *, is_awaited: bool) -> None:
        self.target = self.draft = self
        self._batch, self._is_awaited = batch, is_awaited
        self.trace = Trace(world="simulated")
        self._begin(prompt)

    def _begin(self, prompt: int) -> None:
        outcomes = self._batch.outcomes
        self.at, self._left = outcomes.starts[prompt], outcomes.lengths[prompt]
        self.place = outcomes.prompt_lengths[prompt] - 1 - outcomes.first_context
        self.num_drafted = outcomes.num_drafted[self.at]
        self.num_accepted, self.source = 0, MISS
        self._is_drafted = False

    @property
    def unfinished(self) -> bool:
        """See `decoding.lanes.Lanes`: whether the batch goes on."""
        return self._batch.num_awaited > 0

    def _verifies(self, window: Window) -> None:
        require_unfinished(self._batch.schedule, is_unfinished=self._left > 0)
        require_drafted(self._batch.schedule, window, self.num_drafted if self._is_drafted else None)
        self._is_drafted = False
        if self._batch.schedule.traits.shortens:
            self.num_drafted = len(window.tokens)

    def _drafts(self) -> None:
        require_unfinished(self._batch.schedule, is_unfinished=self._left > 0)
        require_no_draft(self._batch.schedule, is_drafted=self._is_drafted)
        self._is_drafted = True

    def verify(self, window: Window) -> object:
        """See `decoding.lanes.TargetLane`."""
        self._verifies(window)
        return self._batch.ask(self._batch.verify)

    def stream(self, window: Window) -> object:
        """See `decoding.lanes.TargetLane`; a pass without a window has fewer rows."""
        return self.verify(window)

    def prefix(self, window: Window, exit_layer: int) -> object:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        self._verifies(window)
        return self._batch.ask(self._batch.prefix)

    def suffix(self) -> object:
        """See `decoding.lanes.TargetLane`."""
        return self._batch.ask(self._batch.suffix)

    def rollout(self, verdict: Verdict | None = None) -> object:
        """See `decoding.lanes.DraftLane`."""
        self._drafts()
        return self._batch.ask(self._batch.first_rollout if verdict is None else self._batch.rollout_again)

    def branch(self, window: Window) -> "SequenceInBatch":  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._batch.ask(self._batch.branch)
        return self

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        self._batch.ask(self._batch.join)

    def take(self, verdict: Verdict) -> object:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        self._drafts()
        return self._batch.ask(self._batch.take)

    def commit(self, window: Window, verdict: Verdict) -> None:  # noqa: ARG002
        """See `decoding.lanes.Lanes`; the next round has a window unless `take` says otherwise."""
        outcomes, trace, now_s = self._batch.outcomes, self.trace, self._batch.env.now
        self.num_accepted = verdict.num_accepted
        self.source = (outcomes.branches if self.has_window else outcomes.branches_of_no_window)[self.at]
        num_committed = min(verdict.num_accepted + 1, self._left)
        trace.end_round(now_s, WINDOWS[self.num_drafted], verdict, num_committed)
        self._left -= num_committed
        self.at += num_committed
        self.place += num_committed
        if self._left:
            self.num_drafted = outcomes.num_drafted[self.at]
            return
        if self._is_awaited:
            self._is_awaited, trace.decode_s = False, now_s
        if self.unfinished:
            self._begin(next(self._batch.others))

    @property
    def has_window(self) -> bool:
        """Whether the current round has a drafted window; only mirror rounds after a miss in a batch have none."""
        return self.num_drafted > 0 or not self._batch.overlaps

    @property
    def _accepts(self) -> int:
        """Number of tokens of the current window that the target accepts."""
        return min(self._batch.outcomes.num_accepted[self.at], self.num_drafted)

    @property
    def ends_now(self) -> bool:
        """Whether the sequence is awaited and ends with the current round."""
        return self._is_awaited and self._accepts >= self._left - 1

    def decide(self) -> Verdict:
        """Return the target's verdict on the window; its token is unknown after the sequence's end."""
        outcomes, num_accepted = self._batch.outcomes, self._accepts
        return Verdict(num_accepted, outcomes.text[self.at + num_accepted] if num_accepted < self._left else NO_TOKEN)

    def window(self) -> Window:
        """Return the next window."""
        return WINDOWS[self.num_drafted]

    def go_on(self, *, has_window: bool) -> None:
        """Start the next round, with a window or without one."""
        self.trace.mark_hit(hit=self.source != MISS)
        if not has_window:
            self.num_drafted = 0
