"""What overlap could bring at the very most on a pair of lanes (SSD, arXiv 2603.03251; Mirror, arXiv 2510.13161)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import LaneProfile, LatencyTable, Profile
from sim.acceptance.replay import Replay


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
    rows, exit_layer = schedule.num_rows, schedule.exit_layer
    verify_s = target.verify_s(profile.num_layers, rows, context)
    draft_s = _drafting_s(schedule, draft, record, context)
    prefix_s = 0.0 if exit_layer is None else target.prefix_s(exit_layer, rows, context)
    share, exit_share = draft_s / verify_s, min(1.0, prefix_s / verify_s)
    waits = exit_share if schedule.root_source == "exit" else 0.0
    step = draft.draft_step_features if schedule.exit_features else draft.draft_step
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


def _drafting_s(schedule: Schedule, draft: LaneProfile, record: AcceptanceRecord, context: float) -> float:
    """A window drafted alone, in the mean over the record's windows where streams save steps."""
    step_s = draft.draft_s(1, context, with_features=schedule.exit_features)
    guessing = Replay(record).guessing(schedule)
    if guessing is None:
        return schedule.num_speculative_tokens * step_s
    return step_s + sum(
        count * (draft.draft_s(1 + guesses, context) + (_guessing_s(draft, guesses, context)))
        for guesses, count in enumerate(guessing.mean_steps)
        if count
    )


def _guessing_s(draft: LaneProfile, guesses: int, context: float) -> float:
    return 0.0 if draft.draft_streams is None or not guesses else draft.draft_streams.at(guesses, context)


def _bytes(table: LatencyTable | None) -> float:
    return table.bytes_per_call if table is not None else 0.0
