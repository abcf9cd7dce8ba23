"""How noisy measured times are, and how much of their differences by rows is noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrate.fitting.ratios import NORMAL_90, Estimate, noise_of

_LINE: Final = 2
"""Degrees of freedom that a straight line takes."""
_BEND: Final = 2
"""Those that a bend takes: where it is, and how steep the line is from there."""
_KNOWN: Final = 10.0
"""Weight of a point without noise next to one with it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of estimates that were made alike: the relative variance of one.

    `bends` is the relative standard deviation of single sizes from their line that noise hides.
    """

    variance: float
    bends: float = 0.0

    @classmethod
    def of(cls, estimates: Sequence[Estimate], *, bends: float = 0.0) -> Self:
        """The noise that estimates have in common; without any there is none."""
        if not estimates:
            return cls(variance=0.0, bends=bends)
        return cls(variance=noise_of(estimates) * fmean(one.variance for one in estimates), bends=bends)

    def half_width(self, num_points: int) -> float:
        """Half-width (90 %) of the error of a smoothed table of so many points, as a whole or at one size."""
        return NORMAL_90 * sqrt(self.variance * min(1.0, _LINE / max(1, num_points)) + self.bends**2)

    def smoothed(self, seconds: Mapping[int, float], *, known: int | None = None) -> dict[int, float]:
        """Times by ascending rows, moved towards their line as far as noise explains their distance from it.

        The time of rows `known` has no noise: it stays, and the line passes close to it.

        Reading the weights takes as long for one row as for many and hides their arithmetic, up to as many rows as a
        device computes in that time (the roofline of Williams and others, 2009): a line, which bends upwards where
        noise does not explain that it should. If the distances vary by no more than noise does, the line is kept; if
        they vary by much more, the times are (empirical Bayes: Efron and Morris, "Stein's estimation rule and its
        competitors", 1973).
        """
        if len(seconds) <= _LINE or not self.variance:
            return dict(seconds)
        rows, taken = np.array(list(seconds), dtype=np.float64), np.array(list(seconds.values()))
        line, freedom = self._line(rows, taken, np.where(rows == known, _KNOWN, 1.0) / taken)
        distances = taken / line - 1
        own = max(0.0, float((distances**2).sum()) / (len(rows) - freedom) - self.variance)
        estimates = line * (1 + own / (own + self.variance) * distances)
        smooth = dict(zip(seconds, estimates.tolist(), strict=True))
        return smooth if known is None else smooth | {known: seconds[known]}

    def _line(self, rows: Floats, taken: Floats, weights: Floats) -> tuple[Floats, int]:
        """Return the least-squares line and its degrees of freedom, two more if it bends (by Akaike's criterion)."""
        straight, distance = _fitted([rows], taken, weights)
        found, least = (straight, _LINE), distance - 2 * _BEND * self.variance
        for knot in rows[2:-2]:
            bent, distance = _fitted([rows, np.maximum(0.0, rows - knot)], taken, weights)
            if distance < least and bent[-1] - bent[-2] > straight[-1] - straight[-2]:
                found, least = (bent, _LINE + _BEND), distance
        return found


def _fitted(columns: Sequence[Floats], taken: Floats, weights: Floats) -> tuple[Floats, float]:
    """Return the least-squares sum of columns and a constant, and its weighted squared distance from the times."""
    design = np.stack([np.ones_like(taken), *columns], axis=1)
    line = design @ np.linalg.lstsq(design * weights[:, None], taken * weights, rcond=None)[0]
    return line, float((((line - taken) * weights) ** 2).sum())
