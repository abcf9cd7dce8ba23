"""Rounds of a batch in which the draft prepares for every sequence's outcomes while the target verifies.

Seconds from the moment when a round's operations are issued; arrays are over passes::

    target    half dispatch | prefix | suffix | half dispatch, overhead | commit
    draft     half dispatch | reads | exit message | steps of all branches ... | answers

What the draft reads first is a token of each sequence. With the exit's features those with a window have them with the
exit message only, so that their window is read in the branches' first step; the others read what the round before
committed, whose features have come already.

At the commit the verdicts go to the draft. It ends its step under way, finishes the windows of the sequences that have
a branch, and answers with them; without any such sequence it answers at once.
"""

from __future__ import annotations

import numpy as np

from costs.contention import PairContention, Slowdown
from costs.cost_model import Floats, Ints
from costs.crossings import Messages, Way, crossing_s
from costs.duration_tables import DurationTables
from costs.ticks import in_ticks, one_in_ticks
from decoding.schedule import Schedule
from sim.acceptance.replay import Replay
from sim.batch.batch_cost import Passes
from sim.batch.branch_steps import BranchSteps, Progress
from sim.batch.sequences import BatchRounds
from sim.batch.window_steps import Drafting, rollout_seconds


def mirror_seconds(
    schedule: Schedule,
    tables: DurationTables,
    drafting: Drafting,
    acceptance: Replay,
    rounds: BatchRounds,
    passes: Passes,
) -> Floats:
    """How long the rounds of batches take, [passes]; the first one of a batch begins with drafting its windows."""
    plan, profile, messages = drafting.plan, tables.profile, Messages.of(schedule, tables.profile)
    target, draft = profile.lane(plan.target_lane), profile.lane(plan.draft_lane)
    half_t, half_d = one_in_ticks(target.dispatch_s / 2), one_in_ticks(draft.dispatch_s / 2)
    rows, cost = rounds.num_drafted + 1, tables.cost(plan.target_lane)
    alone_s = [passes.seconds(cost, one.calls, rows) for one in plan.segments]
    branches = BranchSteps.of(schedule, drafting, acceptance, rounds, passes)
    slow = _slowdown(tables, branches, np.sum(alone_s, axis=0))
    segments_s = [in_ticks(slow.target * seconds) for seconds in alone_s]
    segments_s[0] = segments_s[0] + one_in_ticks(tables.prices.pass_more_s(schedule))
    to_read = _unread(schedule, rounds)
    read_s = drafting.step_s(passes, to_read, np.zeros_like(to_read))
    ready_s = half_d + in_ticks(slow.draft * np.where(read_s > 0, read_s + drafting.branch_step_s, 0.0))
    commit_s = 2 * half_t + np.sum(segments_s, axis=0) + one_in_ticks(tables.prices.round_overhead_s(schedule))
    told_bytes = passes.sums(np.where(rounds.is_last, 0.0, np.array(messages.verdict_bytes)[rounds.num_accepted]))
    arrival_s, told_s = None, commit_s + crossing_s(messages.to_draft, told_bytes)
    if schedule.uses_exit:
        exit_bytes = passes.sums(rows) * messages.exit_bytes / schedule.num_rows
        exit_s, told_s = _arrivals_s(messages.to_draft, exit_bytes, told_bytes, 2 * half_t + segments_s[0], commit_s)
        arrival_s = exit_s + half_d
    progress = branches.slowed(slow.draft).until(told_s + half_d, ready_s, arrival_s)
    windows = passes.sums(rounds.is_hit) * messages.window_bytes[-1]
    finished_s = progress.noticed_s + _finishing_s(schedule, drafting, progress, rounds, passes)
    answer_s = finished_s + half_d + crossing_s(messages.to_target, windows)
    goes_on, is_first = passes.sums(~rounds.is_last) > 0, passes.sums(rounds.number == 0) > 0
    begins = rounds.number == 0
    first_s = rollout_seconds(schedule, tables, drafting, rounds.some(begins), passes.some(begins))
    return np.where(goes_on, answer_s, commit_s) + np.where(is_first, 2 * half_d + first_s, 0.0)


def _slowdown(tables: DurationTables, branches: BranchSteps, target_s: Floats) -> Slowdown:
    """What the lanes cost each other for a whole round: what was measured, and fair shares of a memory of both.

    The draft is taken to do all the time what most of its steps do. Traffic is that of a pass of one sequence: what the
    others read of their own caches is not counted.
    """
    plan, kind = branches.plan, branches.widest
    target, draft = tables.cost(plan.target_lane), tables.cost(plan.draft_lane)
    of_target = sum(
        count * target.facts(part).bytes_per_call for one in plan.segments for part, count in one.calls.items()
    )
    of_draft = sum(draft.facts(part).bytes_per_call for part, _ in plan.calls_of(kind, 1))
    draft_s = branches.seconds[kind]
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


def _unread(schedule: Schedule, rounds: BatchRounds) -> Ints:
    """Tokens that the draft reads at the start of a round, of every sequence."""
    if not schedule.exit_features:
        return np.ones_like(rounds.number)
    return np.where(rounds.num_drafted > 0, 0, np.roll(rounds.num_accepted, 1) + 1)


def _finishing_s(
    schedule: Schedule, drafting: Drafting, progress: Progress, rounds: BatchRounds, passes: Passes
) -> Floats:
    """What is left of the windows of sequences that have a branch; those without one have no rows, [passes].

    Where no step has begun the draft reads what was committed; without features it has read all but the last token.
    """
    unread = rounds.num_accepted * schedule.exit_features
    position = rounds.position + np.where(rounds.is_hit, rounds.num_committed, 0)
    windows = drafting.windows(unread, rounds.sequence, position)
    done = progress.done[rounds.branch, passes.of_each(np.arange(passes.num_passes))]
    after_commit = passes.with_contexts(rounds.context + rounds.num_committed)
    return windows.only(rounds.is_hit).seconds(drafting, after_commit, done)
