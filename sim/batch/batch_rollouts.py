"""Drafting the windows of a batch: every step has a row, or as many as it takes, of each sequence."""

from __future__ import annotations

import numpy as np

from decoding.schedule import Schedule
from sim.batch.batch_cost import Passes
from sim.batch.sequences import BatchRounds
from sim.cost.cost_model import Floats
from sim.cost.crossings import Messages, crossing_s
from sim.cost.durations import DurationTables
from sim.cost.round_plan import RoundPlan


def rollout_seconds(
    schedule: Schedule, tables: DurationTables, plan: RoundPlan, rounds: BatchRounds, passes: Passes
) -> Floats:
    """Drafting the windows of every pass and the messages before and after it, without its dispatch, [passes]."""
    assert plan.step is not None, "a rollout of a draft that is not there"
    messages, is_later = Messages.of(schedule, tables.profile), rounds.number > 0
    before = np.roll(rounds.num_accepted, 1)
    unread = np.where(is_later, np.array(plan.unread)[before], 0)
    cost, calls = tables.cost(plan.draft_lane), {plan.step: 1}
    seconds = passes.seconds(cost, calls, np.array(plan.first_rows)[unread]) + tables.waking_s(plan)
    for count in plan.later_rows:
        seconds = seconds + passes.seconds(cost, calls, np.full(len(unread), count))
    verdict_bytes = np.where(is_later, np.array(messages.verdict_bytes)[before], 0.0)
    crosses = passes.sums(is_later) > 0
    seconds = seconds + np.where(crosses, crossing_s(messages.to_draft, passes.sums(verdict_bytes)), 0.0)
    window_bytes = np.array(messages.window_bytes)[rounds.num_drafted]
    return seconds + crossing_s(messages.to_target, passes.sums(window_bytes))
