"""What operations and rounds take beyond their calls: what runs showed, as calibration has priced it."""

from __future__ import annotations

from typing import NamedTuple

from costs.round_plan import RoundPlan, StepKind
from costs.ticks import one_in_ticks
from decoding.schedule import Schedule
from hwprofiles.profile import Profile


class Prices(NamedTuple):
    """The prices of one profile, see `LaneProfile`."""

    profile: Profile

    def pass_more_s(self, schedule: Schedule) -> float:
        """What a pass of the target takes more: after it has waited for another lane, and with states to be replied."""
        lane, has_waited = schedule.target_lane, schedule.draft_lane not in (None, schedule.target_lane)
        wake_s = self.profile.lane(lane).wake_s if has_waited else 0.0
        return wake_s + (self.profile.features_s(lane, schedule.drafter) if schedule.reads_features else 0.0)

    def resized_s(self, plan: RoundPlan, first_rows: int) -> float:
        """What the step after a rollout's first one takes more, if that had other rows."""
        return 0.0 if not plan.later_rows or plan.later_rows[0] == first_rows else self.resize_s(plan)

    def resize_s(self, plan: RoundPlan) -> float:
        """What a step of a rollout takes more after one of other rows; of heads and of streams nobody knows."""
        is_known = plan.step is not None and plan.step.kind != "head_step" and not plan.num_streams
        return self.profile.lane(plan.draft_lane).resize_s if is_known else 0.0

    def finish_more_s(self, plan: RoundPlan) -> float:
        """What the first step takes more that finishes a branch, whose steps had a row of every other one too."""
        is_alike = max(plan.step_rows.values(), default=1) == 1
        return 0.0 if is_alike else one_in_ticks(self.resize_s(plan))

    def waking_s(self, plan: RoundPlan) -> float:
        """What the first step of a rollout takes more than later ones of as many rows."""
        if plan.step is None:
            return 0.0
        head = plan.step.drafter if plan.step.kind == "head_step" else None
        return self.profile.lane(plan.draft_lane).rollout_wake_s(head)

    def branch_waking_s(self, plan: RoundPlan, kind: StepKind) -> float:
        """What a step of branches takes more than one of a rollout of as many rows."""
        lane = self.profile.lane(plan.draft_lane)
        return lane.branch_wake_s + (lane.start_wake_s if kind == "window_and_roots" else 0.0)

    def round_overhead_s(self, schedule: Schedule) -> float:
        """What a round takes outside of lanes beyond dispatching."""
        drafts = schedule.draft_lane is not None and not schedule.traits.finds_text
        return self.profile.round_overhead_s + (self.profile.lane(schedule.draft_lane or "").turn_s if drafts else 0.0)
