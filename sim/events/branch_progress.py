"""How far the branches of a round have come, counted in steps of the draft; when steps happen is not known here."""

from __future__ import annotations

from typing import NamedTuple

from decoding.schedule import Schedule
from sim.cost.round_plan import StepKind


class BranchPlan(NamedTuple):
    """What the branches of every round need.

    Attributes:
        draft_steps, exit_steps: steps of the branches of either source.
        reads_window: whether the first step of the exit's branches reads the whole window again.
    """

    draft_steps: int
    exit_steps: int
    reads_window: bool

    @classmethod
    def of(cls, schedule: Schedule) -> BranchPlan:
        """The plan of a mirror schedule; of others it is never asked for."""
        num_steps = schedule.num_speculative_tokens
        return cls(0 if schedule.root_source == "exit" else num_steps, num_steps, schedule.exit_features)


class BranchProgress:
    """Steps that the branches of either source still need.

    All unfinished branches advance together. Draft-sourced ones start at once, exit-sourced ones after `join`;
    with exit features the first step reads the whole window again. See `sim.arrays.mirror_round` for
    the same in arrays.
    """

    __slots__ = ("draft_left", "exit_left", "has_joined", "is_read")

    def begin(self, plan: BranchPlan) -> None:
        """At the start of a round."""
        self.draft_left, self.exit_left, reads_window = plan
        self.has_joined = False
        self.is_read = not reads_window

    def next_run(self) -> tuple[StepKind, int]:
        """What the next steps compute, and how many such steps there are; none if nothing can be done."""
        if not self.has_joined:
            return "draft_roots", self.draft_left
        if self.draft_left:
            return "all_roots", self.draft_left
        if not self.is_read:
            return "window_and_roots", 1
        return "exit_roots", self.exit_left

    def advance(self, kind: StepKind, num_steps: int) -> None:
        """These steps have been done."""
        if kind != "draft_roots":
            self.exit_left -= num_steps
            self.is_read = True
        if kind in ("draft_roots", "all_roots"):
            self.draft_left -= num_steps
