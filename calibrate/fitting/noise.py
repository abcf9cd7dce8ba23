"""Estimates the noise of measured times, and makes them rise with the rows.

A fall counts as noise until further visits confirm it: `doubtful` names what to measure again, and `cliffs` the falls
that noise does not explain. Everything between two cliffs is fitted to rise.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import hypot, log, sqrt
from statistics import fmean
from typing import Final, TypeVar

from calibrate.fitting.ratios import NORMAL_90, Estimate, noise_of

_FALL: Final = 0.15
"""Kernels are up to 5 % faster or slower at single numbers of rows: a smaller fall than this does not matter."""
ENOUGH: Final = 3
"""Visits that have to agree on a fall, for both of two may have met a spike, which is as long each time; after them
nothing is measured again: repeating for as long as a time is high would select low ones."""
_CERTAIN: Final = 1e9
"""Weight of a time without noise."""

K = TypeVar("K")


def half_width_of(estimates: Sequence[Estimate], *, bends: float = 0.0) -> float:
    """Return the half-width (90 %) of the error of one of some estimates that were made alike, by all of them.

    `bends` is the relative standard deviation of single sizes from their neighbours that noise hides.
    """
    variance = noise_of(estimates) * fmean(one.variance for one in estimates) if estimates else 0.0
    return NORMAL_90 * sqrt(variance + bends**2)


def doubtful(line: Sequence[tuple[K, Estimate]]) -> Iterator[K]:
    """Yield each estimate, by ascending size, that falls below a smaller size's, and that one, if seldom visited."""
    highest = None
    for key, one in line:
        if highest is None or one.value >= highest[1].value:
            highest = key, one
        elif highest[1].value > (1 + _FALL) * one.value and min(one.num, highest[1].num) < ENOUGH:
            yield from (highest[0], key)


def cliffs(line: Mapping[int, Estimate]) -> frozenset[int]:
    """Return the row counts, of ascending ones, whose fall below the one before is more than noise.

    That is twice both intervals, since a profile has hundreds of neighbours, of which none may fall by chance. Visits
    that agree may have met the same spike: no interval is narrower than the doubts of its ratios say.
    """

    def half_width(one: Estimate) -> float:
        return max(one.log_half_width, NORMAL_90 * sqrt(one.variance))

    return frozenset(
        rows
        for (_, before), (rows, one) in pairwise(line.items())
        if min(before.num, one.num) >= ENOUGH
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
