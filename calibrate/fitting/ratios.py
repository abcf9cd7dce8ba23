"""Times relative to the anchors around them, since a machine changes its speed within seconds.

A ratio is as certain as its anchors agree: where they differ, the speed changed in between, and nobody knows when. So a
ratio's doubt is the standard error of the anchors' mean (of two anchors, half of the change), and ratios are averaged
with weights of one over doubt squared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import hypot, log, sqrt
from statistics import fmean, median, median_low, stdev
from typing import NamedTuple

from decoding.student_t import t_quantile

_STEADY = 0.03
"""Relative scatter of a short work between equal anchors: what is left on a machine that keeps its speed."""
_MOST_AWAY = 1.5
"""Ratios further from their median than by this factor are moved to it: a few spikes must not decide a mean. Of an even
number the median is the lower of the middle ones, since spikes only add."""
_MOST_OF_MEDIAN = 2.0
"""What an anchor counts at most, over the median: the two speeds of lanes were at most 1.9 apart."""
NORMAL_90 = 1.645
"""Standard deviations on either side that hold 90 % of a normal distribution."""


class Ratio(NamedTuple):
    """A time over the mean of its anchors, and its relative standard deviation."""

    value: float
    doubt: float

    def over(self, expected: float) -> Ratio:
        """The same ratio over another expected value."""
        return Ratio(self.value / expected, self.doubt)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A weighted mean of `num` ratios and its relative variance, if ratios scatter as their doubts have it.

    `scatter` is the sum of squared relative distances from the mean, each over its doubt squared.
    """

    value: float
    variance: float
    scatter: float
    num: int

    @property
    def log_half_width(self) -> float:
        """Half-width (90 %) of the mean's logarithm: by Student's t, of a single ratio by its doubt."""
        if self.num < 2:
            return NORMAL_90 * sqrt(self.variance)
        return t_quantile(self.num - 1) * sqrt(self.variance * self.scatter / (self.num - 1))

    def over(self, expected: float) -> Estimate:
        """The same estimate over another expected value: all else is relative."""
        return replace(self, value=self.value / expected)


def among(seconds: float, anchors_s: Sequence[float]) -> Ratio:
    """The ratio of a time to the mean of the anchors before, in and after it, of which there are at least two."""
    unrest = stdev(map(log, anchors_s)) / sqrt(len(anchors_s))
    return Ratio(seconds / fmean(anchors_s), hypot(_STEADY, unrest))


def estimate(ratios: Sequence[Ratio]) -> Estimate:
    """The mean of at least one ratio."""
    middle = median_low(ratio.value for ratio in ratios)
    weights = [ratio.doubt**-2 for ratio in ratios]
    values = [min(max(ratio.value, middle / _MOST_AWAY), middle * _MOST_AWAY) for ratio in ratios]
    total = sum(weights)
    value = sum(weight * one for weight, one in zip(weights, values, strict=True)) / total
    scatter = 0.0
    if value > 0:
        scatter = sum(weight * (one / value - 1) ** 2 for weight, one in zip(weights, values, strict=True))
    return Estimate(value=value, variance=1 / total, scatter=scatter, num=len(ratios))


def noise_of(estimates: Iterable[Estimate]) -> float:
    """How much more ratios vary than their doubts say, as a factor on variances, pooled; 1 without repeats."""
    repeated = [one for one in estimates if one.num > 1]
    freedom = sum(one.num - 1 for one in repeated)
    return sum(one.scatter for one in repeated) / freedom if freedom else 1.0


def mean_pace(taken: Sequence[float]) -> float:
    """The mean of anchors, none of which (a pause in one says little) counts as more than twice their median."""
    most = _MOST_OF_MEDIAN * median(taken)
    return fmean(min(one, most) for one in taken)


def trimmed_mean(values: Sequence[float], share: float = 0.05) -> float:
    """The mean without the `share` largest and as many of the smallest values; at least one value."""
    cut = int(share * len(values))
    return fmean(sorted(values)[cut : len(values) - cut])
