"""Ratios of times to the anchors around them (since a machine's speed changes within seconds), and their statistics.

If the anchors around a time differ, the speed changed in between, at an unknown moment. So the relative standard
deviation of a ratio (`doubt`) includes the standard error of the anchors' mean, and ratios are averaged with weights
1 / doubt^2. `anchor_errors` separates changes of speed that all lanes share from those of single lanes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, log, sqrt
from statistics import fmean, median, median_low
from typing import NamedTuple

from decoding.student_t import t_quantile

_STEADY = 0.03
"""Relative scatter of short work between equal anchors, on a machine of constant speed."""
_MOST_AWAY = 1.5
"""Ratios are limited to within this factor of their median, so that a few spikes do not decide a mean. For an even
number of ratios the median is the lower middle one, since spikes only make times longer."""
_MOST_OF_MEDIAN = 2.0
"""An anchor counts as at most so many medians: the two speeds of a lane were at most a factor of 1.9 apart."""
NORMAL_90 = 1.645
"""Half-width of the central 90 % of a normal distribution, in standard deviations."""
_STRETCHES = 8
"""Most stretches of time that anchors are divided into."""


class AnchorRatio(NamedTuple):
    """A time over the mean of its anchors, and its relative standard deviation."""

    value: float
    doubt: float

    def over(self, expected: float) -> "AnchorRatio":
        """Return the ratio with its value divided by `expected`."""
        return AnchorRatio(self.value / expected, self.doubt)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A weighted mean of `num` ratios.

    Attributes:
        variance: relative variance of the mean if the ratios scatter as much as their doubts say.
        scatter: actual scatter: the sum of (relative distance from the mean / doubt)^2.
    """

    value: float
    variance: float
    scatter: float
    num: int

    @property
    def log_half_width(self) -> float:
        """Half-width (90 %) of the mean's logarithm: from the scatter by Student's t; for one ratio from its doubt."""
        if self.num < 2:
            return NORMAL_90 * sqrt(self.variance)
        return t_quantile(self.num - 1) * sqrt(self.variance * self.scatter / (self.num - 1))

    def over(self, expected: float) -> "Estimate":
        """Return the estimate with its value divided by `expected`; all other fields are relative."""
        return replace(self, value=self.value / expected)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values; faster than `statistics.stdev`."""
    mean = fmean(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def among(seconds: float, anchors_s: Sequence[float]) -> AnchorRatio:
    """Return the ratio of a time to the mean of the anchors around it, at least two."""
    unrest = deviation(list(map(log, anchors_s))) / sqrt(len(anchors_s))
    return AnchorRatio(seconds / fmean(anchors_s), hypot(_STEADY, unrest))


def estimate(ratios: Sequence[AnchorRatio]) -> Estimate:
    """Return the weighted mean of at least one ratio."""
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
    """Return the pooled actual variance of ratios over that expected from their doubts; 1 without repeats."""
    repeated = [one for one in estimates if one.num > 1]
    freedom = sum(one.num - 1 for one in repeated)
    return sum(one.scatter for one in repeated) / freedom if freedom else 1.0


def mean_pace(taken: Sequence[float]) -> float:
    """Return the mean of anchors, see `limited`."""
    return fmean(limited(taken))


def limited(taken: Sequence[float]) -> list[float]:
    """Return anchors, each limited to `_MOST_OF_MEDIAN` medians, as a pause in one says little."""
    most = _MOST_OF_MEDIAN * median(taken)
    return [min(one, most) for one in taken]


def trimmed_mean(values: Sequence[float], share: float = 0.05) -> float:
    """Return the mean of at least one value without the `share` largest and the `share` smallest."""
    cut = int(share * len(values))
    return fmean(sorted(values)[cut : len(values) - cut])


class AnchorErrors(NamedTuple):
    """Errors (half-widths, 90 %) of the means of anchors: common to all lanes, and of each lane beyond that."""

    common: float
    own: dict[str, float]


def anchor_errors(taken: Mapping[str, Sequence[tuple[float, float]]]) -> AnchorErrors:
    """Return the errors of the anchors' means; `taken` has (time taken, seconds) of each lane's anchors, in order.

    The mean log seconds of lane l in stretch of time b are modelled as m_l + common_b + own_lb; errors are standard
    errors over stretches, by Student's t. Since common_b is estimated as the mean over lanes, it absorbs part of each
    lane's own change; a factor on the own errors compensates for that.
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
    """Return the mean log seconds of each stretch of time; a stretch without anchors repeats the one before."""
    values: list[list[float]] = [[] for _ in range(count)]
    for at_s, seconds in samples:
        values[min(count - 1, int((at_s - start_s) / length_s))].append(log(seconds))
    last = fmean(log(seconds) for _, seconds in samples)
    found = []
    for stretch in values:
        last = fmean(stretch) if stretch else last
        found.append(last)
    return found
