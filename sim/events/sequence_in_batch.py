"""One sequence of a batch: where it is, what the models decide there, and lanes that leave the work to its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpy import Event

from decoding.messages import NO_WINDOW, ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import MISS, NO_TOKEN
from sim.acceptance.replay import Replay

if TYPE_CHECKING:
    from sim.events.simulated_batch import SimulatedBatch

ANY_WINDOW = Window((NO_TOKEN,))
"""A window of any tokens: outcomes know already what is accepted of it, and a method only passes it on."""


class BatchOutcomes:
    """What rounds of one schedule would do from every position of all texts together, as lists."""

    def __init__(self, schedule: Schedule, acceptance: Replay, max_new_tokens: int | None) -> None:
        found = acceptance.per_position(schedule, max_new_tokens)
        self.starts: list[int] = found.starts.tolist()
        self.lengths: list[int] = found.lengths.tolist()
        self.prompt_lengths: list[int] = found.prompt_lengths.tolist()
        self.num_drafted: list[int] = found.num_drafted.tolist()
        self.num_accepted: list[int] = found.num_accepted.tolist()
        self.branches: list[int] = found.branches.tolist()
        self.branches_of_no_window: list[int] = found.branches_of_no_window.tolist()
        self.first_context = acceptance.contexts(max_new_tokens).start
        self.guessing = acceptance.guessing(schedule)
        num_tokens, from_draft = schedule.num_speculative_tokens, schedule.draft_roots_per_row or (0,)
        self.num_draft_roots = from_draft[-1], sum(from_draft)
        """Of a round without a window, and with one; so are the exit's."""
        self.num_exit_roots = [
            acceptance.num_exit_roots(schedule, count) if schedule.uses_exit else 0 for count in (0, num_tokens)
        ]


class SequenceInBatch:
    """The lanes of one sequence (`decoding.lanes.Lanes`: target, draft and branches in one): its batch does the work.

    `place` is the index of its context in the range of contexts; `num_accepted` and `source` are what its last round
    came to: tokens accepted, and whose branch has the outcome.
    """

    __slots__ = (
        "_at", "_batch", "_left", "draft", "end_s", "num_accepted", "num_drafted", "num_rounds", "place", "position",
        "prompt", "source", "target", "unfinished",
    )  # fmt: skip

    def __init__(self, batch: SimulatedBatch, prompt: int) -> None:
        outcomes = batch.outcomes
        self.target = self.draft = self
        self._batch = batch
        self.prompt, self.position = prompt, 0
        self._at, self._left = outcomes.starts[prompt], outcomes.lengths[prompt]
        self.place = outcomes.prompt_lengths[prompt] - 1 - outcomes.first_context
        self.unfinished = True
        self.num_drafted = outcomes.num_drafted[self._at]
        self.num_accepted, self.num_rounds, self.source, self.end_s = 0, 0, MISS, 0.0

    def verify(self, window: Window) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._batch.ask(self, self._batch.verify)

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`."""
        return self.verify(window)

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._batch.ask(self, self._batch.prefix)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        return self._batch.ask(self, self._batch.suffix)

    def rollout(self, verdict: Verdict | None = None) -> Event:
        """See `decoding.lanes.DraftLane`."""
        return self._batch.ask(self, self._batch.first_rollout if verdict is None else self._batch.rollout_again)

    def branch(self, window: Window) -> SequenceInBatch:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._batch.ask(self, self._batch.branch)
        return self

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        self._batch.ask(self, self._batch.join)

    def take(self, verdict: Verdict) -> Event:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        return self._batch.ask(self, self._batch.take)

    def commit(self, window: Window, verdict: Verdict) -> None:  # noqa: ARG002
        """See `decoding.lanes.Lanes`; what follows has a window, unless `take` says otherwise."""
        outcomes = self._batch.outcomes
        self.num_accepted = verdict.num_accepted
        self.num_rounds += 1
        self.source = (outcomes.branches if self.has_window else outcomes.branches_of_no_window)[self._at]
        num_committed = min(verdict.num_accepted + 1, self._left)
        self._left -= num_committed
        self._at += num_committed
        self.place += num_committed
        self.position += num_committed
        if self._left:
            self.num_drafted = outcomes.num_drafted[self._at]
        else:
            self.unfinished, self.end_s = False, self._batch.env.now
            self._batch.end_one()

    @property
    def has_window(self) -> bool:
        """Whether its round under way has the window that a round of its schedule has."""
        return self.num_drafted > 0 or not self._batch.schedule.traits.overlaps

    def decide(self) -> Verdict:
        """What the target decides on its window."""
        return Verdict(self._batch.outcomes.num_accepted[self._at] if self.has_window else 0, NO_TOKEN)

    def take_window(self, *, is_there: bool) -> Window:
        """Go on with the next window, or without one."""
        if is_there:
            return ANY_WINDOW
        self.num_drafted = 0
        return NO_WINDOW
