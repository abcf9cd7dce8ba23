"""Separates noise in measured times from real falls, and fits times that rise with the rows.

Less time for more rows counts as noise until further visits confirm it: `doubtful` tells what to measure again, and
`cliffs` finds the falls that noise does not explain. Times between two cliffs are fitted by a rising function.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import hypot, log, sqrt
from statistics import fmean
from typing import Final, TypeVar

from calibrate.fitting.ratios import NORMAL_90, Estimate, noise_of

_FALL: Final = 0.15
"""Smaller falls are ignored: kernels are up to 5 % faster or slower at single numbers of rows anyway."""
ENOUGH: Final = 3
"""Visits needed to confirm a fall: two may both have met a spike, as spikes have similar lengths. With so many visits a
time is not measured again, since repeating high times until they are low would bias them."""
_CERTAIN: Final = 1e9
"""Weight of a time without noise."""

K = TypeVar("K")


def half_width_of(estimates: Sequence[Estimate], *, bends: float = 0.0) -> float:
    """Return the half-width (90 %) of the error of one of several similar estimates, from the noise of all of them.

    `bends`: relative standard deviation of real differences between neighbouring sizes, which noise hides.
    """
    variance = noise_of(estimates) * fmean(one.variance for one in estimates) if estimates else 0.0
    return NORMAL_90 * sqrt(variance + bends**2)


def doubtful(line: Sequence[tuple[K, Estimate]]) -> Iterator[K]:
    """Yield keys to measure again: pairs in which a larger size takes less time and one of both has few visits.

    `line` has estimates by ascending size.
    """
    highest = None
    for key, one in line:
        if highest is None or one.value >= highest[1].value:
            highest = key, one
        elif highest[1].value > (1 + _FALL) * one.value and min(one.num, highest[1].num) < ENOUGH:
            yield from (highest[0], key)


def cliffs(line: Mapping[int, Estimate]) -> frozenset[int]:
    """Return the row counts whose time falls below that of the count before by more than noise.

    The fall must exceed twice the combined half-widths, because a profile has hundreds of neighbours and none of them
    should fall by chance. Half-widths are at least those by the ratios' doubts: visits that agree may have met the same
    spike.
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
    """Split ascending row counts before each cliff in `cuts`."""
    stretch: list[int] = []
    for count in rows:
        if count in cuts and stretch:
            yield stretch
            stretch = []
        stretch.append(count)
    if stretch:
        yield stretch


def rising(seconds: Mapping[int, float], *, known: int | None = None) -> dict[int, float]:
    """Return the nearest non-falling times (isotonic regression, Ayer et al. 1955); the time of `known` rows stays."""
    pools: list[tuple[float, float, int]] = []
    for rows, one in seconds.items():
        mean, weight, num = one, _CERTAIN if rows == known else 1.0, 1
        while pools and pools[-1][0] > mean:
            mean_before, weight_before, num_before = pools.pop()
            mean = (mean * weight + mean_before * weight_before) / (weight + weight_before)
            weight, num = weight + weight_before, num + num_before
        pools.append((mean, weight, num))
    return dict(zip(seconds, (mean for mean, _, num in pools for _ in range(num)), strict=True))
