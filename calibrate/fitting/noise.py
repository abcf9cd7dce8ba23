"""How noisy times are, and what of a row of them noise explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Self

import numpy as np

from calibrate.fitting.ratios import NORMAL_90, Estimate, noise_of

_LINE = 2
"""Points that a straight line takes away from what they say about noise."""
_KNOWN = 10.0
"""Weight of a point without noise next to one with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Of several estimates that were made alike.

    Attributes:
        variance: relative variance of one of them.
        bends: relative standard deviation of single sizes from their line, as far as noise hides it.
    """

    variance: float
    bends: float = 0.0

    @classmethod
    def of(cls, estimates: Sequence[Estimate], *, bends: float = 0.0) -> Self:
        """What they have in common; none are exact."""
        if not estimates:
            return cls(variance=0.0, bends=bends)
        return cls(variance=noise_of(estimates) * fmean(one.variance for one in estimates), bends=bends)

    def half_width(self, num_points: int) -> float:
        """What a table of so many points may be off by (90 %), once it is smoothed: as a whole, or at one size."""
        return NORMAL_90 * sqrt(self.variance * min(1.0, _LINE / max(1, num_points)) + self.bends**2)

    def smoothed(self, seconds: Mapping[int, float], *, known: int | None = None) -> dict[int, float]:
        """Times by rows, moved towards their straight line as far as noise explains their distance from it.

        Rows `known` have a time without noise: it stays, and the line goes by it.

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
