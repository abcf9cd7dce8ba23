"""`Durations` as lists over contexts, from which the event world reads single values faster than from arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from decoding.schedule import Schedule
from decoding.trace import Work
from sim.cost.durations import Durations
from sim.cost.round_plan import StepKind
from sim.events.branch_progress import BranchPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCosts:
    """Times of one schedule's operations, see `Durations`; what is not a list there is none here.

    Attributes:
        verification: the segment that verifies a window, by the number of its tokens.
        later_s: [contexts][steps].
        slowdowns: (target's, draft's) by segment and kind of step.
    """

    verification: dict[int, int]
    segments_s: list[list[float]]
    segment_rows: tuple[int, ...]
    segment_work: tuple[Work, ...]
    step_s: dict[StepKind, list[float]]
    step_rows: dict[StepKind, int]
    catch_up_s: list[list[float]]
    most_unread: int
    later_s: list[tuple[float, ...]]
    later_rows: tuple[int, ...]
    rollout_s: list[list[float]]
    guessing_s: list[list[float]]
    branch_plan: BranchPlan
    slowdowns: dict[int | str, dict[int | str, tuple[list[float], list[float]]]]
    first_context: int
    target_half_s: float
    draft_half_s: float
    round_overhead_s: float
    transfer_s: float

    @classmethod
    def of(cls, schedule: Schedule, durations: Durations) -> Self:
        """The lists of `durations`."""
        plan = durations.plan
        return cls(
            verification={width: segment for segment, width in enumerate(plan.widths)},
            segments_s=[segment.tolist() for segment in durations.segments_s],
            segment_rows=tuple(operation.rows for operation in plan.segments),
            segment_work=tuple(operation.work for operation in plan.segments),
            step_s={kind: seconds.tolist() for kind, seconds in durations.step_s.items()},
            step_rows=dict(plan.step_rows),
            catch_up_s=durations.catch_up_s.tolist(),
            most_unread=plan.most_unread,
            later_s=list(zip(*(step.tolist() for step in durations.later_s), strict=True)),
            later_rows=plan.later_rows,
            rollout_s=durations.rollout_s.tolist(),
            guessing_s=durations.guessing_s.tolist(),
            branch_plan=BranchPlan.of(schedule),
            slowdowns={
                segment: {kind: (slow.target.tolist(), slow.draft.tolist()) for kind, slow in slowdowns.items()}
                for segment, slowdowns in enumerate(durations.slowdowns)
            },
            first_context=durations.first_context,
            target_half_s=durations.target_half_s,
            draft_half_s=durations.draft_half_s,
            round_overhead_s=durations.round_overhead_s,
            transfer_s=durations.transfer_s,
        )
