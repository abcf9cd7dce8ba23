"""What overlap could bring at the very most on a pair of lanes (see reference: SSD 2603.03251, Mirror 2510.13161)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.errors import ProfileError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import LatencyTable, Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapBound:
    """Limits of one schedule's lanes and window, were every branch a hit and nothing else in the way.

    Attributes:
        draft_share: time of one serial draft over the time of one verification (d).
        exit_share: share of a verification before the exit's message is out (f); 0 without an exit.
        over_synchronous: speed-up over drafting and verifying in turn on the same lanes. With draft-sourced
            roots (1 + d) / max(1, d), at most 2; when all roots wait for the exit
            (1 + d) / (f + max(1 - f, d)), at most 2 - f.
        memory_floor_s: time per token that the shared memory alone needs; None if the profile has no pool.
    """

    draft_share: float
    exit_share: float
    over_synchronous: float
    memory_floor_s: float | None


def overlap_bound(
    schedule: Schedule, profile: Profile, record: AcceptanceRecord, *, mean_acceptance_length: float
) -> OverlapBound:
    """The bound for a drafting schedule, at the middle of the record's contexts.

    Raises:
        ProfileError: the profile lacks the lanes, or has no measurement there.
    """
    contexts = record.contexts
    context = (contexts.start + contexts.stop - 1) / 2
    target = profile.lane(schedule.target_lane)
    draft = profile.lane(str(schedule.draft_lane))
    step = draft.draft_step_features if schedule.exit_features else draft.draft_step
    rows = schedule.num_rows
    verify_s = profile.num_layers * _at(target.layer, rows, context) + _at(target.lm_head, rows, context)
    draft_s = schedule.num_speculative_tokens * _at(step, 1, context)
    prefix_s = 0.0
    if schedule.exit_layer is not None:
        prefix_s = schedule.exit_layer * _at(target.layer, rows, context)
        prefix_s += _at(target.exit.get(schedule.exit_layer), rows, context)
    share, exit_share = draft_s / verify_s, min(1.0, prefix_s / verify_s)
    waits = exit_share if schedule.root_source == "exit" else 0.0
    round_bytes = (
        profile.num_layers * _bytes(target.layer)
        + _bytes(target.lm_head)
        + schedule.num_speculative_tokens * _bytes(step)
    )
    pool = profile.memory_pool_bytes_per_s
    return OverlapBound(
        draft_share=share,
        exit_share=exit_share,
        over_synchronous=(1 + share) / (waits + max(1 - waits, share)),
        memory_floor_s=round_bytes / pool / mean_acceptance_length if pool else None,
    )


def _at(table: LatencyTable | None, rows: int, context: float) -> float:
    if table is None:
        msg = "the profile lacks a cost that the schedule needs; only schedules of a search have bounds"
        raise ProfileError(msg)
    return table.at(rows, context)


def _bytes(table: LatencyTable | None) -> float:
    return table.bytes_per_call if table is not None else 0.0
