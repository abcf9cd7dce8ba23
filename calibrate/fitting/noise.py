"""Estimates the noise of measured times, smooths them along rows, and makes them rise with the rows.

A fall counts as noise until a second visit confirms it: `doubtful` names what to measure again, and `cliffs` the falls
that noise does not explain. Everything between two cliffs is fitted to rise.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, log, sqrt
from statistics import fmean
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrate.fitting.ratios import NORMAL_90, Estimate, noise_of

_LINE: Final = 2
"""Degrees of freedom that a straight line takes."""
_BEND: Final = 2
"""Degrees of freedom that a bend takes: where it is, and how steep the line is from there."""
_KNOWN: Final = 10.0
"""Weight of a point without noise next to one with it."""

_FALL: Final = 0.15
"""Kernels are up to 5 % faster or slower at single numbers of rows: a smaller fall than this does not matter."""
_ENOUGH: Final = 2
"""Visits after which nothing is measured again: repeating for as long as a time is high would select low ones."""
_CERTAIN: Final = 1e9
"""Weight of a time without noise."""

Floats = NDArray[np.float64]
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of estimates that were made alike: the relative variance of one.

    `bends` is the relative standard deviation of single sizes from their line that noise hides.
    """

    variance: float
    bends: float = 0.0

    @classmethod
    def of(cls, estimates: Sequence[Estimate], *, bends: float = 0.0) -> Self:
        """Return the noise that estimates have in common; without any there is none."""
        if not estimates:
            return cls(variance=0.0, bends=bends)
        return cls(variance=noise_of(estimates) * fmean(one.variance for one in estimates), bends=bends)

    def half_width(self, num_points: int) -> float:
        """Return the half-width (90 %) of the error of a smoothed table of `num_points`, as a whole or at one size."""
        return NORMAL_90 * sqrt(self.variance * min(1.0, _LINE / max(1, num_points)) + self.bends**2)

    def smoothed(self, seconds: Mapping[int, float], *, known: int | None = None) -> dict[int, float]:
        """Return times by ascending rows, moved towards a line as far as noise explains their distance from it.

        The time of rows `known` has no noise: it stays, and the line passes close to it.

        Reading the weights takes as long for one row as for many and hides the arithmetic of the rows, up to a number
        (the roofline of Williams and others, 2009): a line, which may bend upwards. If the distances vary by no more
        than noise does, the line is kept; if they vary by much more, the times are (empirical Bayes: Efron and Morris,
        "Stein's estimation rule and its competitors", 1973).
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


def doubtful(line: Sequence[tuple[K, Estimate]]) -> Iterator[K]:
    """Yield each estimate, by ascending size, that falls below a smaller size's, and that one, if seldom visited."""
    highest = None
    for key, one in line:
        if highest is None or one.value >= highest[1].value:
            highest = key, one
        elif highest[1].value > (1 + _FALL) * one.value and min(one.num, highest[1].num) < _ENOUGH:
            yield from (highest[0], key)


def cliffs(line: Mapping[int, Estimate]) -> frozenset[int]:
    """Return the row counts, of ascending ones, whose fall below the one before is more than noise.

    That is twice both intervals, since a profile has hundreds of neighbours, of which none may fall by chance. Two
    visits that agree may both have met a spike: no interval is narrower than the doubts of its ratios say.
    """

    def half_width(one: Estimate) -> float:
        return max(one.log_half_width, NORMAL_90 * sqrt(one.variance))

    return frozenset(
        rows
        for (_, before), (rows, one) in pairwise(line.items())
        if min(before.num, one.num) > 1
        and log(before.value / one.value) - 2 * hypot(half_width(before), half_width(one)) > log(1 + _FALL)
    )


def between(rows: Sequence[int], cuts: Collection[int]) -> Iterator[list[int]]:
    """Yield ascending row counts in stretches, each of which ends before a cliff."""
    stretch: list[int] = []
    for count in rows:
        if count in cuts and stretch:
            yield stretch
            stretch = []
        stretch.append(count)
    if stretch:
        yield stretch


def rising(seconds: Mapping[int, float], *, known: int | None = None) -> dict[int, float]:
    """Return the nearest rising times (isotonic regression, Ayer and others, 1955); those of `known` rows stay."""
    pools: list[tuple[float, float, int]] = []
    for rows, one in seconds.items():
        mean, weight, num = one, _CERTAIN if rows == known else 1.0, 1
        while pools and pools[-1][0] > mean:
            other, more, others = pools.pop()
            mean, weight = (mean * weight + other * more) / (weight + more), weight + more
            num += others
        pools.append((mean, weight, num))
    return dict(zip(seconds, (mean for mean, _, num in pools for _ in range(num)), strict=True))
