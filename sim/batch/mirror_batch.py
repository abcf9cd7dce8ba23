"""Rounds of a batch in which the draft prepares for every sequence's outcomes while the target verifies.

Seconds from the moment when a round's operations are issued; arrays are over passes::

    target    half dispatch | prefix | suffix | half dispatch, overhead | commit
    draft     half dispatch | reads a token of each | exit message | steps of all roots ... | answers

At the commit the verdicts go to the draft. It ends its step under way, finishes the windows of the sequences that have
a branch, a row each, and answers with them; without any such sequence it answers at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding.schedule import Schedule
from sim.batch.batch_cost import Passes
from sim.batch.batch_rollouts import rollout_seconds
from sim.batch.sequences import BatchRounds
from sim.cost.contention import PairContention, Slowdown
from sim.cost.cost_model import Floats
from sim.cost.crossings import Messages, Way, crossing_s
from sim.cost.durations import DurationTables
from sim.cost.round_plan import DRAFT_STEP, RoundPlan, StepKind
from sim.ticks import in_ticks, one_in_ticks


class _Steps(NamedTuple):
    """Times of the draft's steps in every pass: reading a token of each sequence, all roots, and the branches hit."""

    read_s: Floats
    roots_s: Floats
    finish_s: Floats


def mirror_seconds(
    schedule: Schedule, tables: DurationTables, plan: RoundPlan, rounds: BatchRounds, passes: Passes
) -> Floats:
    """How long the rounds of batches take, [passes]; the first one of a batch begins with drafting its windows."""
    profile, messages = tables.profile, Messages.of(schedule, tables.profile)
    target, draft = profile.lane(plan.target_lane), profile.lane(plan.draft_lane)
    half_t, half_d = one_in_ticks(target.dispatch_s / 2), one_in_ticks(draft.dispatch_s / 2)
    rows, cost = rounds.num_drafted + 1, tables.cost(plan.target_lane)
    alone_s = [passes.seconds(cost, one.calls, rows) for one in plan.segments]
    steps = _steps(schedule, tables, plan, rounds, passes)
    slow = _slowdown(tables, plan, np.sum(alone_s, axis=0), steps.roots_s)
    segments_s = [in_ticks(slow.target * seconds) for seconds in alone_s]
    segments_s[0] = segments_s[0] + one_in_ticks(target.wake_s)
    ready_s = half_d + in_ticks(slow.draft * steps.read_s)
    commit_s = 2 * half_t + np.sum(segments_s, axis=0) + one_in_ticks(profile.round_overhead_s)
    told_bytes = passes.sums(np.where(rounds.is_last, 0.0, np.array(messages.verdict_bytes)[rounds.num_accepted]))
    if schedule.uses_exit:
        exit_bytes = passes.sums(rows) * messages.exit_bytes / schedule.num_rows
        exit_s, told_s = _arrivals_s(messages.to_draft, exit_bytes, told_bytes, 2 * half_t + segments_s[0], commit_s)
        ready_s = np.maximum(ready_s, exit_s + half_d)
    else:
        told_s = commit_s + crossing_s(messages.to_draft, told_bytes)
    asked_s = told_s + half_d
    num_steps, step_s = schedule.num_speculative_tokens, in_ticks(slow.draft * steps.roots_s)
    begun = np.clip(np.ceil((asked_s - ready_s) / step_s), 0, num_steps)
    noticed_s = np.maximum(asked_s, ready_s + begun * step_s)
    windows = passes.sums(rounds.is_hit) * messages.window_bytes[-1]
    answer_s = noticed_s + (num_steps - begun) * steps.finish_s + half_d + crossing_s(messages.to_target, windows)
    goes_on, is_first = passes.sums(~rounds.is_last) > 0, passes.sums(rounds.number == 0) > 0
    first_s = 2 * half_d + rollout_seconds(schedule, tables, plan, rounds, passes)
    return np.where(goes_on, answer_s, commit_s) + np.where(is_first, first_s, 0.0)


def _slowdown(tables: DurationTables, plan: RoundPlan, target_s: Floats, draft_s: Floats) -> Slowdown:
    """What the lanes cost each other for a whole round: what was measured, and fair shares of a memory of both.

    Traffic is that of a pass of one sequence: what the others read of their own caches is not counted.
    """
    target, draft = tables.cost(plan.target_lane), tables.cost(plan.draft_lane)
    of_target = sum(
        count * target.facts(part).bytes_per_call for one in plan.segments for part, count in one.calls.items()
    )
    of_draft = draft.facts(DRAFT_STEP).bytes_per_call
    wanted = np.divide(of_draft, draft_s, out=np.zeros_like(draft_s), where=draft_s > 0)
    return PairContention.of(tables.profile, plan.target_lane, plan.draft_lane).slowdown(of_target / target_s, wanted)


def _arrivals_s(
    way: Way, exit_bytes: Floats, told_bytes: Floats, exit_s: Floats, told_s: Floats
) -> tuple[Floats, Floats]:
    """When exit messages and the verdicts after them arrive: on every link a verdict queues after the exit message."""
    for hop in way:
        free_s = exit_s + in_ticks(exit_bytes / hop.bytes_per_s)
        exit_s = free_s + hop.latency_s
        told_s = np.maximum(told_s, free_s) + in_ticks(told_bytes / hop.bytes_per_s) + hop.latency_s
    return exit_s, told_s


def _steps(schedule: Schedule, tables: DurationTables, plan: RoundPlan, rounds: BatchRounds, passes: Passes) -> _Steps:
    kind: StepKind = "exit_roots" if schedule.uses_exit else "draft_roots"
    budget = schedule.exit_roots_per_row if schedule.uses_exit else schedule.draft_roots_per_row
    roots = np.where(rounds.num_drafted > 0, sum(budget), budget[-1])
    cost, one_row = tables.cost(plan.draft_lane), {plan.part_of("one_row"): 1}
    after_commit = passes.with_contexts(rounds.context + rounds.num_committed)
    return _Steps(
        read_s=passes.seconds(cost, one_row, np.ones_like(roots)),
        roots_s=passes.seconds(cost, {plan.part_of(kind): 1}, roots),
        finish_s=after_commit.seconds(cost, one_row, rounds.is_hit.astype(np.int64)),
    )
