"""Decoding in batches, simulated: sequences go through their rounds together, and a round is one pass of all rows.

Prompts are taken in order, `batch_size` at a time; a batch ends when its last sequence does, and those that have ended
take no rows any more. One message carries what crosses for all of them. Prefill is not counted.

With branches (`mirror`), the draft prepares for all sequences at once and answers at the end of its step under way;
sequences without a branch for their outcome go on without a window (`sim.batch.sequences`). Where both lanes compute
in a round they slow each other for all of it. All rounds have the mean pace (`costs.paces`).

Nothing here runs for real yet: the runtime decodes one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costs.cost_model import Floats, Ints, LaneCost
from costs.duration_tables import DurationTables
from costs.round_plan import RoundPlan
from decoding.errors import ConfigError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from sim.acceptance.acceptance_model import Acceptance
from sim.acceptance.replay import Replay, as_acceptance
from sim.batch.batch_cost import Passes
from sim.batch.mirror_batch import mirror_seconds
from sim.batch.sequences import BatchRounds, batch_rounds
from sim.batch.window_steps import Drafting, rollout_seconds

MAX_BATCH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPrediction:
    """One schedule with so many sequences at once; sums run over all batches.

    Attributes:
        schedule, batch_size: what was asked.
        tokens_per_s: committed tokens of all sequences together, per second.
        tpot_s: time per token as one sequence sees it: its own decoding time over its tokens, on average over tokens.
        decode_s: of all batches, one after the other.
        num_tokens, num_passes: committed tokens, target passes.
        mean_rows: rows of a pass.
        mean_acceptance_length: committed tokens of a sequence per pass that it took part in.
        source: where acceptance and times come from.
    """

    schedule: Schedule
    batch_size: int
    tokens_per_s: float
    tpot_s: float
    decode_s: float
    num_tokens: int
    num_passes: int
    mean_rows: float
    mean_acceptance_length: float
    source: str


def predict_batch(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance | AcceptanceRecord,
    *,
    batch_size: int,
    max_new_tokens: int | None = None,
    costs: Mapping[str, LaneCost] | None = None,
) -> BatchPrediction:
    """Predict what a schedule does with `batch_size` sequences at once (1..64); arguments as in `sim.evaluator`.

    Raises:
        ProfileError: the profile lacks what the schedule uses (`OutOfRangeError`: passes of so many rows).
        RecordError: the acceptance does not cover the schedule.
        ConfigError: the batch size is none, or the acceptance is drawn round by round (`DrawnAcceptance`).
    """
    replay = _replay(acceptance)
    if not 1 <= batch_size <= MAX_BATCH:
        raise ConfigError(f"batch_size is {batch_size}: it is 1..{MAX_BATCH}")
    tables = DurationTables(profile, replay.contexts(max_new_tokens), costs)
    rounds = batch_rounds(schedule, replay, max_new_tokens)
    batch = rounds.sequence // batch_size
    first, pass_of, num_passes = _passes(batch, rounds.number)
    passes = Passes(pass_of, rounds.context, num_passes)
    plan = RoundPlan.of(schedule, replay.shape(schedule), profile.num_layers)
    branch_step_s = tables.prices.branch_step_s(plan.draft_lane)
    drafting = Drafting(plan, tables.cost(plan.draft_lane), replay.guessing(schedule), branch_step_s)
    if schedule.traits.overlaps:
        seconds = mirror_seconds(schedule, tables, drafting, replay, rounds, passes)
    else:
        seconds = _seconds_in_turn(schedule, tables, drafting, rounds, passes)
    ends_s = _ends(seconds, first)
    last = np.flatnonzero(rounds.is_last)
    num_tokens = int(rounds.num_committed.sum())
    parts = [(plan.target_lane, part) for one in plan.segments for part in one.calls]
    parts += [(plan.draft_lane, part) for part in plan.drafting_parts]
    sources = dict.fromkeys((replay.source, *(tables.cost(lane).facts(part).source for lane, part in parts)))
    return BatchPrediction(
        schedule=schedule,
        batch_size=batch_size,
        tokens_per_s=num_tokens / float(seconds.sum()),
        tpot_s=float(ends_s[pass_of[last]].sum()) / num_tokens,
        decode_s=float(seconds.sum()),
        num_tokens=num_tokens,
        num_passes=num_passes,
        mean_rows=float((rounds.num_drafted + 1).sum()) / num_passes,
        mean_acceptance_length=num_tokens / len(rounds.sequence),
        source="; ".join((*sources, "batches are simulated only")),
    )


def best_by_batch(
    schedules: Sequence[Schedule],
    profile: Profile,
    acceptance: Acceptance | AcceptanceRecord,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    max_new_tokens: int | None = None,
    costs: Mapping[str, LaneCost] | None = None,
) -> dict[int, BatchPrediction]:
    """Of every batch size the schedule of most tokens per second; errors are those of `predict_batch`."""
    replay = _replay(acceptance)
    return {
        size: max(
            (
                predict_batch(one, profile, replay, batch_size=size, max_new_tokens=max_new_tokens, costs=costs)
                for one in schedules
            ),
            key=lambda found: found.tokens_per_s,
        )
        for size in batch_sizes
    }


def switch_off_at(best: Mapping[int, BatchPrediction]) -> int | None:
    """The batch size from which on plain decoding is the fastest of what was asked; None if it is not at the largest.

    `best` is what `best_by_batch` returned for schedules with plain decoding among them.
    """
    off: int | None = None
    for size in sorted(best, reverse=True):
        if best[size].schedule.traits.window != "none":
            break
        off = size
    return off


def _replay(acceptance: Acceptance | AcceptanceRecord) -> Replay:
    found = as_acceptance(acceptance)
    if not isinstance(found, Replay):
        raise ConfigError(f"{found.source}: batches are played along texts, recorded or drawn")
    return found


def _passes(batch: Ints, number: Ints) -> tuple[Ints, Ints, int]:
    """(first pass of every batch, the pass of every round, their number): batches one after the other."""
    num_rounds = np.zeros(int(batch[-1]) + 1, dtype=np.int64)
    np.maximum.at(num_rounds, batch, number + 1)
    first = np.cumsum(num_rounds) - num_rounds
    return first, first[batch] + number, int(num_rounds.sum())


def _ends(seconds: Floats, first: Ints) -> Floats:
    """When every pass ends, counted from the start of its batch."""
    total = np.cumsum(seconds)
    before = total[first] - seconds[first]
    num_rounds = np.diff(np.append(first, len(seconds)))
    ends: Floats = total - np.repeat(before, num_rounds)
    return ends


def _seconds_in_turn(
    schedule: Schedule, tables: DurationTables, drafting: Drafting, rounds: BatchRounds, passes: Passes
) -> Floats:
    """Rounds in which draft and target take turns, or the target drafts itself, [passes]."""
    plan, profile = drafting.plan, tables.profile
    target, cost = profile.lane(plan.target_lane), tables.cost(plan.target_lane)
    rows = rounds.num_drafted + 1
    seconds = passes.seconds(cost, plan.segments[-1].calls, rows)
    seconds += target.dispatch_s + tables.prices.round_overhead_s(schedule)
    seconds += tables.prices.pass_more_s(schedule)
    if plan.streams:
        return seconds + passes.seconds(cost, {plan.streams: 1}, rows)
    if plan.step is None:
        return seconds
    seconds += profile.lane(plan.draft_lane).dispatch_s
    return seconds + rollout_seconds(schedule, tables, drafting, rounds, passes)
