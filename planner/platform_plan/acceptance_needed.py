"""How often the target would have to accept drafted tokens for speculation to pay, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from costs.cost_model import LaneCost
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.paired_ratio import Ratio, comparer

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
    costs: Mapping[str, LaneCost] | None = None,
) -> AcceptanceNeeded:
    """Ask at rates from rare to sure, and at today's; in between them everything is taken to be straight lines.

    Args:
        schedules: those that draft, of which the best counts at every rate; at least one.
        plain: what they compete with.
        profile: the machine.
        record_at: the texts if drafted tokens were accepted with such a mean rate.
        now: today's rate.
        costs: cost models in place of the profile's tables, by lane.
    """
    rates = sorted({*RATES, now})

    @cache
    def best(rate: float) -> Ratio:
        compare = comparer(profile, record_at(rate), costs)
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
    """Return the rate from which on a ratio that begins below one is above it; None if it never is, or always.

    A ratio rises with the rate, so that halving finds the two rates between which it passes one.
    """
    before, after = rates[0], rates[-1]
    if ratio(before) >= 1 or ratio(after) < 1:
        return None
    while middle := [rate for rate in rates if before < rate < after]:
        half = middle[len(middle) // 2]
        before, after = (before, half) if ratio(half) >= 1 else (half, after)
    return before + (after - before) * (1 - ratio(before)) / (ratio(after) - ratio(before))
