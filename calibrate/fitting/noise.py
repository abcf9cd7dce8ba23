"""How noisy measured times are, and how much of their differences by rows is noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Self

import numpy as np

from calibrate.fitting.ratios import NORMAL_90, Estimate, noise_of

_LINE = 2
"""Degrees of freedom that a straight line takes."""
_KNOWN = 10.0
"""Weight of a point without noise next to one with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of several estimates that were made alike.

    Attributes:
        variance: relative variance of one of them.
        bends: relative standard deviation of single sizes from their line that noise hides.
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
        """Times by rows, moved towards their straight line as far as noise explains their distance from it.

        The time of rows `known` has no noise: it stays, and the line passes close to it.

        More rows are more of the same work after one reading of the weights: a line, but for what kernels do at
        certain sizes. If the distances vary by no more than noise does, the line is kept; if they vary by much
        more, the times are (empirical Bayes: Efron and Morris, "Stein's estimation rule and its competitors", 1973).
        """
        if len(seconds) <= _LINE or not self.variance:
            return dict(seconds)
        rows, taken = np.array(list(seconds), dtype=np.float64), np.array(list(seconds.values()))
        slope, start = np.polyfit(rows, taken, 1, w=np.where(rows == known, _KNOWN, 1.0) / taken)
        line = start + slope * rows
        distances = taken / line - 1
        own = max(0.0, float((distances**2).sum()) / (len(rows) - _LINE) - self.variance)
        estimates = line * (1 + own / (own + self.variance) * distances)
        smooth = dict(zip(seconds, estimates.tolist(), strict=True))
        return smooth if known is None else smooth | {known: seconds[known]}
