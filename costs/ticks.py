"""The simulators' unit of time, the tick."""

from math import floor

import numpy as np
from numpy.typing import NDArray

TICK_S = 2.0**-40
"""All durations are multiples of this tick of 0.9 ps. Their sums are exact in float64 below 8192 s, in any order, so
events that coincide in one simulator also coincide in the other."""


def in_ticks(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to whole ticks, halves up: adding whole ticks before or after rounding gives the same result."""
    return np.floor(seconds / TICK_S + 0.5) * TICK_S


def one_in_ticks(seconds: float) -> float:
    """Return `in_ticks` of one number, without the overhead of arrays."""
    return floor(seconds / TICK_S + 0.5) * TICK_S


def work_in_ticks(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to whole ticks, but to at least one, since all work takes time."""
    return np.maximum(in_ticks(seconds), TICK_S)
