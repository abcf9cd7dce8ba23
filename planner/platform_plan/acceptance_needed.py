"""How often the target would have to accept drafted tokens for speculation to pay, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.paired_ratio import Ratio
from planner.search.comparison import comparer

RATES: Final = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceNeeded:
    """Mean acceptance of a drafted token, given that all before it were accepted.

    Attributes:
        now: what is assumed, or recorded.
        at: where the best speculation is predicted as fast as plain decoding; None where no rate makes it so.
        low: below it predictions tell that speculation is slower; None where they never do.
        high: above it they tell that it is faster; None where they never do.
        always, never: whether speculation is predicted to be faster, or slower, at every rate asked about.
    """

    now: float
    at: float | None
    low: float | None
    high: float | None
    always: bool = False
    never: bool = False


def acceptance_needed(
    schedules: Sequence[Schedule],
    plain: Schedule,
    profile: Profile,
    record_at: Callable[[float], AcceptanceRecord],
    *,
    now: float,
) -> AcceptanceNeeded:
    """Ask at rates from rare to sure; in between them everything is taken to be straight lines.

    Args:
        schedules: those that draft, of which the best counts at every rate; at least one.
        plain: what they compete with.
        profile: the machine.
        record_at: the texts if drafted tokens were accepted with such a mean rate.
        now: today's rate.
    """
    found = {rate: _best(schedules, plain, profile, record_at(rate)) for rate in RATES}
    return AcceptanceNeeded(
        now=now,
        at=_crossing([(rate, one.value) for rate, one in found.items()]),
        low=_crossing([(rate, one.high) for rate, one in found.items()]),
        high=_crossing([(rate, one.low) for rate, one in found.items()]),
        always=all(one.value > 1 for one in found.values()),
        never=all(one.value < 1 for one in found.values()),
    )


def _best(schedules: Sequence[Schedule], plain: Schedule, profile: Profile, record: AcceptanceRecord) -> Ratio:
    compare = comparer(profile, record)
    return max((compare(one, plain) for one in schedules), key=lambda found: found.value)


def _crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """The rate from which on a ratio that begins below one is above it; None if it never is, or always."""
    if points[0][1] >= 1:
        return None
    for (before, below), (after, above) in pairwise(points):
        if above >= 1:
            return before + (after - before) * (1 - below) / (above - below)
    return None
