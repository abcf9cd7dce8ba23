"""Steps of a batch's branches: what they take, and how far they are when the draft notices the verdicts.

The branches of all sequences go on together, in runs of equal steps. Those of the draft's own roots start when it has
read what it has to, those of the exit's when their message has arrived. With both, those of the draft go on alone until
the first boundary after that, then all do, and when the draft's are finished the exit's go on alone.

Shape legend: S sequences in some pass, N passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats, Ints
from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, RoundPlan, StepKind
from costs.ticks import in_ticks
from decoding.schedule import RootSource, Schedule
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT
from sim.acceptance.replay import Replay
from sim.batch.batch_cost import Passes
from sim.batch.sequences import BatchRounds
from sim.batch.window_steps import Drafting

_ALL_ROOTS: dict[RootSource | None, StepKind] = {"draft": "draft_roots", "hybrid": "all_roots", "exit": "exit_roots"}


class Progress(NamedTuple):
    """Of every pass: when the draft acts on a message [N], and the steps that branches have done then [sources, N]."""

    noticed_s: Floats
    done: Ints


Run = tuple[StepKind, Ints | int]
"""Equal steps in a row, and how many they are, of every pass [N] or of all."""


class BranchSteps(NamedTuple):
    """Steps of all branches, by kind, [N]."""

    schedule: Schedule
    plan: RoundPlan
    seconds: Mapping[StepKind, Floats]

    @classmethod
    def of(
        cls, schedule: Schedule, drafting: Drafting, acceptance: Replay, rounds: BatchRounds, passes: Passes
    ) -> BranchSteps:
        """What they take alone. A sequence without a window has the roots of a single row."""
        plan = drafting.plan
        has_window, from_draft = rounds.num_drafted > 0, schedule.draft_roots_per_row
        draft_roots = np.where(has_window, sum(from_draft), from_draft[-1])
        num_tokens = schedule.num_speculative_tokens
        exit_roots = np.where(has_window, *(acceptance.num_exit_roots(schedule, count) for count in (num_tokens, 0)))

        def seconds_of(kind: StepKind, rows_each: int, more_rows: Ints | int = 0) -> Floats:
            roots = draft_roots * (kind in DRAFT_STEPS) + exit_roots * (kind in EXIT_STEPS) + more_rows
            calls = plan.calls_of(kind, rows_each)
            seconds = sum(
                (passes.seconds(drafting.cost, {part: 1}, rows * roots) for part, rows in calls),
                start=np.zeros(passes.num_passes),
            )
            return np.where(seconds > 0, seconds + drafting.branch_step_s, 0.0)

        known = [kind for kind in _ALL_ROOTS.values() if kind in plan.step_rows]
        seconds = {kind: seconds_of(kind, 1) for kind in known}
        if "window_and_roots" in plan.step_rows:
            seconds["window_and_roots"] = seconds_of("window_and_roots", 1, rounds.num_drafted)
        if plan.branch_guesses:
            later = [plan.in_step(kind, is_first=False) for kind in known]
            seconds |= {kind: seconds_of(kind, 1 + plan.branch_guesses) for kind in later}
        return cls(schedule, plan, seconds)

    def slowed(self, slowdown: Floats) -> BranchSteps:
        """The same steps, that many times as long."""
        return self._replace(seconds={kind: in_ticks(slowdown * one) for kind, one in self.seconds.items()})

    @property
    def widest(self) -> StepKind:
        """The kind of step in which all roots go on."""
        return self.plan.in_step(_ALL_ROOTS[self.schedule.root_source], is_first=False)

    def until(self, asked_s: Floats, ready_s: Floats, arrival_s: Floats | None) -> Progress:
        """How far they come before the verdicts, if the draft is ready then and the exit's message arrives then.

        A step that has begun is ended. Where verdicts and message arrive together no step for the exit's roots begins.
        """
        if arrival_s is None:
            return self._follow(self._in_order("draft_roots"), ready_s, asked_s)
        if self.schedule.root_source == "exit":
            return self._follow(self._in_order("exit_roots"), np.maximum(ready_s, arrival_s), asked_s)
        alone = self._follow(self._in_order("draft_roots"), ready_s, arrival_s)
        together = self._follow(self._joined(alone.done[FROM_DRAFT]), alone.noticed_s, asked_s)
        return Progress(together.noticed_s, alone.done + together.done)

    def _in_order(self, kind: StepKind) -> Iterator[Run]:
        """All steps for some roots, the first one of which has no guesses, or with features reads the window too."""
        yield "window_and_roots" if self.schedule.exit_features else kind, 1
        yield self.plan.in_step(kind, is_first=False), self.plan.branch_steps - 1

    def _joined(self, done: Ints) -> Iterator[Run]:
        """All steps from when the exit's roots are there, after so many of the draft's own."""
        none, every = 1 * (done == 0), 1 * (done == self.plan.branch_steps)
        yield "all_roots", none
        yield self.plan.in_step("all_roots", is_first=False), self.plan.branch_steps - done - none
        yield "exit_roots", every
        yield self.plan.in_step("exit_roots", is_first=False), done - every

    def _follow(self, runs: Iterator[Run], start_s: Floats, asked_s: Floats) -> Progress:
        """Runs one after the other, until a message."""
        noticed_s = np.maximum(asked_s, start_s)
        done = np.zeros((3, len(start_s)), dtype=np.int64)
        for kind, num_steps in runs:
            step_s = self.seconds[kind]
            left_s, forever = asked_s - start_s, np.full_like(step_s, np.inf)  # nobody has a root: nothing to do
            begun = np.clip(np.ceil(np.divide(left_s, step_s, out=forever, where=step_s > 0)), 0, num_steps)
            noticed_s = np.maximum(noticed_s, np.where(begun > 0, start_s + begun * step_s, 0.0))
            start_s = start_s + num_steps * step_s
            done[FROM_DRAFT] += begun.astype(np.int64) * (kind in DRAFT_STEPS)
            done[FROM_EXIT] += begun.astype(np.int64) * (kind in EXIT_STEPS)
        return Progress(noticed_s, done)
