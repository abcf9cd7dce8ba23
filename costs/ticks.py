"""The simulator's unit of time: durations are whole ticks, so that sums of them are exact in any order."""

from math import floor

import numpy as np
from numpy.typing import NDArray

TICK_S = 2.0**-40
"""Durations are whole ticks of 0.9 ps. Sums of ticks are exact below 8192 s, so the order of additions does not
matter, and two lanes meet at the same boundary in both simulators or in neither."""


def in_ticks(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest whole ticks; halves go up, so that a delay of whole ticks before or after changes nothing."""
    return np.floor(seconds / TICK_S + 0.5) * TICK_S


def one_in_ticks(seconds: float) -> float:
    """Return `in_ticks` of a single number, without the cost of arrays."""
    return floor(seconds / TICK_S + 0.5) * TICK_S


def work_in_ticks(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest whole ticks, at least one: all work takes time."""
    return np.maximum(in_ticks(seconds), TICK_S)
