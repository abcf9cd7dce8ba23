"""How noisy times are, and what of a row of them noise explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import pi
from statistics import fmean, median, quantiles
from typing import Self

import numpy as np

_QUARTILE = 0.6745
"""Of the standard normal distribution: half its central 50 %, in standard deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Of medians over samples.

    Attributes:
        relative_error: half-width of the samples' central 50 % over their median, see `spread`.
        num_samples: samples of every median.
    """

    relative_error: float
    num_samples: int

    @classmethod
    def of(cls, samples: Sequence[Sequence[float]]) -> Self:
        """What several lists of samples have in common."""
        return cls(relative_error=spread(samples), num_samples=min(map(len, samples), default=1))

    @property
    def variance(self) -> float:
        """Relative variance of a median, if samples are normally distributed."""
        return pi / 2 * (self.relative_error / _QUARTILE) ** 2 / self.num_samples

    def smoothed(self, seconds: Mapping[int, float]) -> dict[int, float]:
        """Times by rows, moved towards their straight line as far as noise explains their distance from it.

        More rows are more of the same work after one reading of the weights: a line, but for what kernels do at
        certain sizes. If the distances vary by no more than noise does, the line is kept; if they vary by much
        more, the times are (empirical Bayes: Efron and Morris, "Stein's estimation rule and its competitors", 1973).
        """
        if len(seconds) <= 2 or not self.variance:
            return dict(seconds)
        rows, taken = np.array(list(seconds), dtype=np.float64), np.array(list(seconds.values()))
        slope, start = np.polyfit(rows, taken, 1, w=1 / taken)
        line = start + slope * rows
        distances = taken / line - 1
        own = max(0.0, float((distances**2).sum()) / (len(rows) - 2) - self.variance)
        estimates = line * (1 + own / (own + self.variance) * distances)
        return dict(zip(seconds, estimates.tolist(), strict=True))


def spread(samples: Iterable[Sequence[float]]) -> float:
    """Half-width of the central 50 % of each list over its median, averaged over the lists."""
    widths = []
    for seconds in samples:
        if len(seconds) > 1:
            lower, _, upper = quantiles(seconds, n=4, method="inclusive")
            widths.append((upper - lower) / 2 / median(seconds))
    return fmean(widths) if widths else 0.0
