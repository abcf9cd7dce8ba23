"""A plan's answer played event by event: another simulator that has to come to the same times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.wording import milliseconds
from sim.world import simulate

_SAME: Final = 0.01
"""Relative difference up to which both simulators say the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What the event world makes of what is recommended, and of the fastest plain decoding.

    Attributes:
        tpot_s, plain_tpot_s: time per token.
        relative_difference, plain_relative_difference: of these from what was predicted.
    """

    tpot_s: float
    relative_difference: float
    plain_tpot_s: float
    plain_relative_difference: float

    @property
    def agrees(self) -> bool:
        """Whether both are as predicted."""
        return max(abs(self.relative_difference), abs(self.plain_relative_difference)) <= _SAME

    @property
    def in_words(self) -> str | None:
        """What is wrong; None where the two agree."""
        if self.agrees:
            return None
        times = ((self.tpot_s, self.relative_difference), (self.plain_tpot_s, self.plain_relative_difference))
        best, plain = (f"{milliseconds(seconds)} per token ({100 * by:+.1f} %)" for seconds, by in times)
        return (
            f"Played event by event it takes {best}, and plain decoding {plain}: the two simulators disagree, so that "
            "one of them is wrong here. Please report it."
        )


def play(plan: PlatformPlan) -> Played:
    """Play what a plan recommends, and plain decoding, once on all of its texts."""
    best, plain = plan.recommended, plan.plain
    tpot_s, plain_tpot_s = (_played_s(plan, one) for one in (best, plain))
    return Played(
        tpot_s=tpot_s,
        relative_difference=tpot_s / best.tpot_s - 1,
        plain_tpot_s=plain_tpot_s,
        plain_relative_difference=plain_tpot_s / plain.tpot_s - 1,
    )


def _played_s(plan: PlatformPlan, one: PlannedSchedule) -> float:
    traces = simulate(one.schedule, plan.profile, plan.question.record, trace=False, costs=plan.costs)
    return sum(trace.decode_s for trace in traces) / one.prediction.num_tokens
