"""What the runs answer: the seam between measured schedules and the planner's verdict on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrate.validate import Comparison
from mirrorsd.compare.local_verdict import MeasuredSchedule, MeasuredVerdict, Ratio, judge_measured, paired_ratio
from planner.report.report_data import ScheduleResult


def measured_schedules(
    results: Sequence[ScheduleResult], comparisons: Sequence[Comparison]
) -> tuple[MeasuredSchedule, ...]:
    """What a verdict is made from, in the order given."""
    return tuple(
        MeasuredSchedule(
            name=comparison.schedule,
            schedule=result.candidate.schedule,
            predicted_s=result.predicted_s,
            seconds=comparison.at_anchor_s,
            tpot_s=comparison.measured_tpot_s_at_anchor,
        )
        for result, comparison in zip(results, comparisons, strict=True)
    )


def measured_verdict(results: Sequence[ScheduleResult], comparisons: Sequence[Comparison]) -> MeasuredVerdict:
    """Whether speculation pays by these runs, and which of the schedules to use."""
    return judge_measured(measured_schedules(results, comparisons))


def speedups(results: Sequence[ScheduleResult], comparisons: Sequence[Comparison]) -> list[Ratio | None]:
    """How many times as fast each schedule is as the best plain placement by prediction; None if none was run."""
    measured = measured_schedules(results, comparisons)
    plain = [one for one in measured if one.schedule.traits.window == "none"]
    if not plain:
        return [None] * len(measured)
    reference = min(plain, key=lambda one: one.predicted_s)
    return [paired_ratio(one.seconds, reference.seconds) for one in measured]


def ratio_entry(ratio: Ratio | None) -> dict[str, Any] | None:
    """A ratio for scripts; ends of the interval that are not known become null."""
    if ratio is None:
        return None
    low = ratio.low if ratio.num_pairs > 1 else None
    high = ratio.high if ratio.num_pairs > 1 else None
    return {"value": ratio.value, "low": low, "high": high}
