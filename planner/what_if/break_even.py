"""At which value of a quantity another kind of decoding becomes the fastest, and how sure that value is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.wording import Kind

Way = Literal["down", "up"]
Ask = Callable[[float], dict[Kind, float]]
"""The best time per token of every kind if a quantity had some value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """A value at which two kinds are equally fast: the median of many draws, and where nine of ten of them lie."""

    at: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Sequence[float | None]) -> BreakEven | None:
        """Return what the draws come to; None if even one of them never crosses."""
        found = [draw for draw in draws if draw is not None]
        if len(found) < len(draws):
            return None
        low, at, high = np.percentile(found, (5, 50, 95))
        return cls(at=float(at), low=float(low), high=float(high))


def crossing(ask: Ask, values: Sequence[float], here: int, challenger: Kind, way: Way) -> float | None:
    """Return the value from which on `challenger` is the fastest, walking `way` from today's, `values[here]`.

    In between the ascending values the times are taken to be straight lines; `ask` is asked only for those that the
    walk meets. Where the challenger is the fastest already, the walk goes back to where it is not. None if there is no
    such value.
    """
    leads_here = _lead(ask(values[here]), challenger) > 0
    step = (1 if way == "up" else -1) * (-1 if leads_here else 1)
    place = here
    while 0 <= place + step < len(values):
        before, after = _lead(ask(values[place]), challenger), _lead(ask(values[place + step]), challenger)
        if (after > 0) != leads_here:
            return values[place] + (values[place + step] - values[place]) * before / (before - after)
        place += step
    return None


def _lead(times_s: dict[Kind, float], challenger: Kind) -> float:
    """By how much the challenger is faster than all others, in seconds per token."""
    return min(time_s for kind, time_s in times_s.items() if kind != challenger) - times_s[challenger]
