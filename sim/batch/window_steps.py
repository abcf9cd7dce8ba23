"""Drafting the windows of a batch: every sequence has steps of its own, and the next ones of all are one pass.

A window whose tokens are all drafted has no rows in the steps that others still need. With a draft's streams a step has
a row for every guess besides, and another pass, of the streams, over the guesses alone.

Shape legend: K steps of a window at most, S sequences in some pass, N passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Floats, Ints, LaneCost
from costs.crossings import Messages, crossing_s
from costs.duration_tables import DurationTables
from costs.round_plan import DRAFT_STEP, DRAFT_STREAMS, RoundPlan
from decoding.schedule import Schedule
from sim.acceptance.stream_guesses import Guessing
from sim.batch.batch_cost import Passes
from sim.batch.sequences import BatchRounds


class Drafting(NamedTuple):
    """What drafts: how much each step takes and what it costs; `branch_step_s` is the overhead of one of branches."""

    plan: RoundPlan
    cost: LaneCost
    guessing: Guessing | None
    branch_step_s: float = 0.0

    def windows(self, unread_S: Ints, prompt_S: Ints, position_S: Ints) -> WindowSteps:
        """The steps of windows from positions of prompts; the first one reads so many tokens before the last one."""
        first_S = np.array(self.plan.first_rows)[unread_S]
        if self.guessing is None:
            later = np.repeat(np.array(self.plan.later_rows, dtype=np.int64)[:, None], len(first_S), axis=1)
            return WindowSteps(np.vstack([first_S, later]), np.zeros((1 + len(later), len(first_S)), dtype=np.int64))
        later = self.guessing.rows_by_step(prompt_S, position_S)
        return WindowSteps(np.vstack([first_S, later]), np.vstack([0 * first_S, np.maximum(later - 1, 0)]))

    def step_s(self, passes: Passes, rows_S: Ints, guesses_S: Ints) -> Floats:
        """A step of every pass, [N]; a single guess makes all its rows those of a draft without features."""
        assert self.plan.step is not None, "a step of a draft that is not there"
        has_guesses = passes.of_each(passes.sums(guesses_S) > 0)
        plain_s = passes.seconds(self.cost, {self.plan.step: 1}, np.where(has_guesses, 0, rows_S))
        if not has_guesses.any():
            return plain_s
        guessed_s = passes.seconds(self.cost, {DRAFT_STEP: 1}, np.where(has_guesses, rows_S, 0))
        return plain_s + guessed_s + passes.seconds(self.cost, {DRAFT_STREAMS: 1}, guesses_S)


class WindowSteps(NamedTuple):
    """Rows of the steps of windows, and the guesses among them, [K, S]; no rows where a window is complete."""

    rows: Ints
    guesses: Ints

    def only(self, which_S: NDArray[np.bool_]) -> WindowSteps:
        """The steps of some of the windows."""
        return WindowSteps(self.rows * which_S, self.guesses * which_S)

    def seconds(self, drafting: Drafting, passes: Passes, done_S: Ints) -> Floats:
        """What is left of the windows after so many steps of each, [N]."""
        seconds, sequences = np.zeros(passes.num_passes), np.arange(len(done_S))
        for number in range(len(self.rows)):
            step = np.minimum(done_S + number, len(self.rows) - 1)
            is_left = done_S + number < len(self.rows)
            rows_S, guesses_S = (np.where(is_left, of[step, sequences], 0) for of in (self.rows, self.guesses))
            seconds = seconds + drafting.step_s(passes, rows_S, guesses_S)
        return seconds


def rollout_seconds(
    schedule: Schedule, tables: DurationTables, drafting: Drafting, rounds: BatchRounds, passes: Passes
) -> Floats:
    """Drafting the windows of every pass and the messages before and after it, without its dispatch, [N]."""
    messages, is_later = Messages.of(schedule, tables.profile), rounds.number > 0
    before = np.roll(rounds.num_accepted, 1)
    unread = np.where(is_later, np.array(drafting.plan.unread)[before], 0)
    windows = drafting.windows(unread, rounds.sequence, rounds.position)
    seconds = windows.seconds(drafting, passes, np.zeros_like(unread)) + tables.prices.rollout_start_s(schedule)
    verdict_bytes = np.where(is_later, np.array(messages.verdict_bytes)[before], 0.0)
    crosses = passes.sums(is_later) > 0
    seconds = seconds + np.where(crosses, crossing_s(messages.to_draft, passes.sums(verdict_bytes)), 0.0)
    window_bytes = np.array(messages.window_bytes)[rounds.num_drafted]
    return seconds + crossing_s(messages.to_target, passes.sums(window_bytes))
