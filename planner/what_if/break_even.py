"""The value of a quantity at which another kind of decoding becomes the fastest, and its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from planner.wording import Kind

Way = Literal["down", "up"]
Ask = Callable[[float], Mapping[Kind, float]]
"""The best time per token of each kind at a value of the quantity."""


class BreakEven(NamedTuple):
    """A value at which two kinds are equally fast: the median of many draws, and the ends of nine tenths of them."""

    at: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Sequence[float | None]) -> BreakEven | None:
        """Return the break-even of some draws; None if one of them has none."""
        found = [draw for draw in draws if draw is not None]
        if len(found) < len(draws):
            return None
        low, at, high = np.percentile(found, (5, 50, 95))
        return cls(at=float(at), low=float(low), high=float(high))


def crossing(ask: Ask, values: Sequence[float], here: int, challenger: Kind, way: Way) -> float | None:
    """Return the value from which on `challenger` is the fastest, on the `way` from today's, `values[here]`.

    Between the ascending values times are interpolated; `ask` is asked only for values that the walk meets. Where the
    challenger is the fastest today, the walk goes back to where it is not. None if there is no such value.
    """

    def lead_s(place: int) -> float:
        times_s = ask(values[place])
        return min(time_s for kind, time_s in times_s.items() if kind != challenger) - times_s[challenger]

    leads_here = lead_s(here) > 0
    step = (1 if way == "up" else -1) * (-1 if leads_here else 1)
    place = here
    while 0 <= place + step < len(values):
        before, after = lead_s(place), lead_s(place + step)
        if (after > 0) != leads_here:
            return values[place] + (values[place + step] - values[place]) * before / (before - after)
        place += step
    return None
