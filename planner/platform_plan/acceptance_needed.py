"""The break-even acceptance of speculation, and its interval."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from decoding.schedule import Schedule
from planner.paired_ratio import Ratio, comparer
from planner.platform_plan.question import Question
from sim.derived.derived_profile import DerivedProfile

RATES: Final = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""Acceptances that are asked about; between them times and ratios are taken to be straight lines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceNeeded:
    """Mean acceptance of a drafted token, given that all before it were accepted.

    Attributes:
        now: what is assumed, or recorded.
        at: where the best speculation is predicted as fast as plain decoding; None where no rate makes it so.
        low: below it speculation is slower beyond doubt; None where it never is.
        high: above it speculation is faster beyond doubt; None where it never is.
        always, never: whether speculation is predicted to be faster, or slower, at every rate asked about.
    """

    now: float
    at: float | None
    low: float | None
    high: float | None
    always: bool = False
    never: bool = False


def acceptance_needed(
    schedules: Sequence[Schedule], plain: Schedule, machine: DerivedProfile, question: Question
) -> AcceptanceNeeded:
    """Compare the best of `schedules`, which draft (at least one), with `plain` at `RATES` and at today's rate."""
    now = question.acceptance.value
    rates = sorted({*RATES, now})

    @cache
    def best(rate: float) -> Ratio:
        compare = comparer(machine.profile, question.record_at(rate), machine.costs)
        return max((compare(one, plain) for one in schedules), key=lambda found: found.value)

    ends = best(rates[0]).value, best(rates[-1]).value
    return AcceptanceNeeded(
        now=now,
        at=_crossing(rates, lambda rate: best(rate).value),
        low=_crossing(rates, lambda rate: best(rate).high),
        high=_crossing(rates, lambda rate: best(rate).low),
        always=min(ends) > 1,
        never=max(ends) < 1,
    )


def _crossing(rates: Sequence[float], ratio: Callable[[float], float]) -> float | None:
    """Return the rate from which on a ratio that rises with it is above one; None if it never is, or always."""
    if ratio(rates[0]) >= 1 or ratio(rates[-1]) < 1:
        return None
    place = bisect_left(rates, True, lo=1, hi=len(rates) - 1, key=lambda rate: ratio(rate) >= 1)
    before, after = rates[place - 1], rates[place]
    return before + (after - before) * (1 - ratio(before)) / (ratio(after) - ratio(before))
