"""The search of Nelder and Mead (1965) for the least value of a function of a few numbers, without derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from costs.cost_model import Floats

_REFLECT: Final = 1.0
_EXPAND: Final = 2.0
_CONTRACT: Final = 0.5
_SHRINK: Final = 0.5


def minimize(
    function: Callable[[Floats], float], start: Floats, *, step: float, tolerance: float, max_calls: int
) -> Floats:
    """Where `function` is least, as far as a simplex that begins at `start` and spans `step` finds it.

    It ends where the values of all corners lie within `tolerance`, or soon after `max_calls`.
    """
    corners = np.vstack([start, start + step * np.eye(len(start))])
    values = np.array([function(corner) for corner in corners])
    num_calls = len(values)
    while num_calls < max_calls and values.max() - values.min() > tolerance:
        order = np.argsort(values, kind="stable")
        corners, values = corners[order], values[order]
        middle = corners[:-1].mean(axis=0)
        num_calls += _moved(function, corners, values, middle)
    best: Floats = corners[int(np.argmin(values))]
    return best


def _moved(function: Callable[[Floats], float], corners: Floats, values: Floats, middle: Floats) -> int:
    """Replace the worst corner, the last one, or draw all to the best; returns the number of calls."""

    def at(share: float) -> tuple[Floats, float]:
        corner = middle + share * (middle - corners[-1])
        return corner, function(corner)

    reflected = at(_REFLECT)
    if values[0] <= reflected[1] < values[-2]:
        corners[-1], values[-1] = reflected
        return 1
    if reflected[1] < values[0]:
        corners[-1], values[-1] = min(reflected, at(_EXPAND), key=lambda found: found[1])
        return 2
    contracted = at(_CONTRACT if reflected[1] < values[-1] else -_CONTRACT)
    if contracted[1] < min(reflected[1], values[-1]):
        corners[-1], values[-1] = contracted
        return 2
    corners[1:] = corners[0] + _SHRINK * (corners[1:] - corners[0])
    values[1:] = [function(corner) for corner in corners[1:]]
    return 1 + len(corners)
