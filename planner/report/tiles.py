"""The large figures on top of a page: the answer, the speed of what is recommended, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from statistics import median
from typing import Final

from decoding.schedule import Schedule
from planner.report.report_data import ReportData
from planner.verdict import SpeculationVerdict
from planner.wording import counted, error_percent, factor, percent, schedule_name, tokens_per_second

_MEANING: Final = {
    "yes": ("Yes", "speculation is faster than plain decoding"),
    "no": ("No", "speculation is not faster than plain decoding"),
    "cannot_tell": ("Cannot tell", "whether speculation is faster than plain decoding"),
}


def tiles(data: ReportData) -> Iterator[tuple[str, str]]:
    """Yield (number, what it is)."""
    verdict = data.verdict
    if verdict.speedup is not None:
        yield _answer_tile(verdict)
    speed_s = _recommended_s(data)
    if speed_s is not None:
        yield tokens_per_second(speed_s), f"{verdict.world}, with what is recommended"
    yield _trust_tile(data)


def recommended_name(data: ReportData, schedule: Schedule) -> str:
    """Return the schedule's name in the table, or one of its own where the table does not have it."""
    for name, result in zip(data.names, data.results, strict=True):
        if result.candidate.schedule == schedule:
            return name
    return schedule_name(schedule, "pooled" if schedule.is_pooled else "split")


def _answer_tile(verdict: SpeculationVerdict) -> tuple[str, str]:
    """Return the speed-up where there is an answer, else the answer's word, never another number."""
    ratio = verdict.speedup
    assert ratio is not None
    word, meaning = _MEANING[verdict.pays]
    ends = f" ({factor(ratio.low)} to {factor(ratio.high)})" if isfinite(ratio.high) else ""
    if verdict.pays == "cannot_tell":
        return word, f"{meaning}, by what was {verdict.world}" + ends * (ratio.outcome == "cannot tell")
    return factor(ratio.value), f"the speed of plain decoding, {verdict.world}{ends}"


def _recommended_s(data: ReportData) -> float | None:
    """Return the time per token of what is recommended, in the answer's own world."""
    verdict = data.verdict
    for result in data.results:
        if result.candidate.schedule == verdict.schedule:
            return result.measured_s if verdict.world == "measured" else result.predicted_s
    found = [one.tpot_s for one in data.plan.search.candidates if one.schedule == verdict.schedule]
    return found[0] if found and verdict.world == "predicted" else None


def _trust_tile(data: ReportData) -> tuple[str, str]:
    if not data.errors:
        expected = percent(data.plan.profile.relative_error)
        return f"±{expected}", "expected of all predicted times together; nothing was run yet"
    label = f"median error of the prediction over {counted(len(data.errors), 'schedule')}"
    if data.errors_at_anchor:
        at_anchor = error_percent(median(abs(error) for error in data.errors_at_anchor))
        label += f", as calibrated; {at_anchor} at the speed of the anchors"
    return error_percent(median(abs(error) for error in data.errors)), label
