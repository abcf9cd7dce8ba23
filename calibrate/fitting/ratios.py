"""Times relative to the anchors around them, since a machine changes its speed within seconds.

Where the anchors around a ratio differ, the speed changed in between, at an unknown time. So a ratio's doubt (relative
standard deviation) is the standard error of the anchors' mean, and ratios are averaged with weights of one over doubt
squared. What all lanes share of the change, anchors in stretches of time show (`anchor_errors`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, log, sqrt
from statistics import fmean, median, median_low
from typing import NamedTuple

from decoding.student_t import t_quantile

_STEADY = 0.03
"""Relative scatter of a short work between equal anchors: what is left on a machine that keeps its speed."""
_MOST_AWAY = 1.5
"""Ratios further from their median than by this factor are moved to it: a few spikes must not decide a mean. Of an even
number the median is the lower of the middle ones, since spikes only add."""
_MOST_OF_MEDIAN = 2.0
"""Most that an anchor counts, over the median: the two speeds of lanes were at most a factor of 1.9 apart."""
NORMAL_90 = 1.645
"""Standard deviations on either side that hold 90 % of a normal distribution."""
_STRETCHES = 8


class AnchorRatio(NamedTuple):
    """A time over the mean of its anchors, and its relative standard deviation."""

    value: float
    doubt: float

    def over(self, expected: float) -> "AnchorRatio":
        """Return the same ratio over another expected value."""
        return AnchorRatio(self.value / expected, self.doubt)


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

    def over(self, expected: float) -> "Estimate":
        """Return the same estimate over another expected value: all else is relative."""
        return replace(self, value=self.value / expected)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values, faster than `statistics`, which adds up fractions."""
    mean = fmean(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def among(seconds: float, anchors_s: Sequence[float]) -> AnchorRatio:
    """Return the ratio of a time to the mean of the anchors before, in and after it, at least two."""
    unrest = deviation(list(map(log, anchors_s))) / sqrt(len(anchors_s))
    return AnchorRatio(seconds / fmean(anchors_s), hypot(_STEADY, unrest))


def estimate(ratios: Sequence[AnchorRatio]) -> Estimate:
    """Return the mean of at least one ratio."""
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
    """Return how much more ratios vary than their doubts say, as a factor on variances, pooled; 1 without repeats."""
    repeated = [one for one in estimates if one.num > 1]
    freedom = sum(one.num - 1 for one in repeated)
    return sum(one.scatter for one in repeated) / freedom if freedom else 1.0


def mean_pace(taken: Sequence[float]) -> float:
    """Return the mean of anchors, none of which (a pause in one says little) counts as more than twice their median."""
    most = _MOST_OF_MEDIAN * median(taken)
    return fmean([min(one, most) for one in taken])


def trimmed_mean(values: Sequence[float], share: float = 0.05) -> float:
    """Return the mean without the `share` largest and as many of the smallest values; at least one value."""
    cut = int(share * len(values))
    return fmean(sorted(values)[cut : len(values) - cut])


class AnchorErrors(NamedTuple):
    """Errors (half-widths at 90 %) of the means of anchors: of all lanes together, and of each lane beyond that."""

    common: float
    own: dict[str, float]


def anchor_errors(taken: Mapping[str, Sequence[tuple[float, float]]]) -> AnchorErrors:
    """Return the errors of anchors from (time, seconds) of every lane's, in the order taken.

    Lane l in stretch b has the mean log time m_l + common_b + own_lb; standard errors over stretches, by Student's t.
    What is common is known as the mean over lanes only, which takes a share of every lane's own: it is given back.
    """
    count = min([_STRETCHES, *(len(samples) // 2 for samples in taken.values())])
    if count < 2:
        several = [[log(seconds) for _, seconds in own] for own in taken.values() if len(own) > 1]
        return AnchorErrors(NORMAL_90 * max(map(deviation, several), default=0.0), dict.fromkeys(taken, 0.0))
    start_s = min(samples[0][0] for samples in taken.values())
    length_s = (max(samples[-1][0] for samples in taken.values()) - start_s) / count or 1.0
    logs = {lane: _stretches(samples, start_s, length_s, count) for lane, samples in taken.items()}
    means = {lane: fmean(values) for lane, values in logs.items()}
    common = [fmean(values[place] - means[lane] for lane, values in logs.items()) for place in range(count)]
    own = {
        lane: [value - means[lane] - shift for value, shift in zip(values, common, strict=True)]
        for lane, values in logs.items()
    }
    quantile = t_quantile(count - 1) / sqrt(count)
    own_quantile = quantile * sqrt(len(taken) / max(1, len(taken) - 1))
    return AnchorErrors(
        quantile * deviation(common), {lane: own_quantile * deviation(values) for lane, values in own.items()}
    )


def _stretches(samples: Sequence[tuple[float, float]], start_s: float, length_s: float, count: int) -> list[float]:
    """Return the mean log seconds of every stretch of time; one without an anchor is like the one before."""
    values: list[list[float]] = [[] for _ in range(count)]
    for at_s, seconds in samples:
        values[min(count - 1, int((at_s - start_s) / length_s))].append(log(seconds))
    last = fmean(log(seconds) for _, seconds in samples)
    found = []
    for stretch in values:
        last = fmean(stretch) if stretch else last
        found.append(last)
    return found
