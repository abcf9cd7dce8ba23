"""Pearson's chi-square test of counts against an exact distribution, and how surely it sees a difference.

A total variation of d, whatever its direction, gives n draws a noncentrality of at least 4 n d**2: by the inequality
of Cauchy and Schwarz, (sum |change|)**2 <= sum change**2 / probability. So the power said here is that of the direction
that is hardest to see.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import exp, lgamma, log
from typing import NamedTuple

import torch

_LEAST_EXPECTED = 10.0
"""Of a cell: those below are one cell together."""


class Fit(NamedTuple):
    """A test of counts.

    `total_variation` is that of the counts' shares; of right ones it is not 0, but what chance makes of so many draws.
    """

    num_draws: int
    statistic: float
    degrees_of_freedom: int
    p_value: float
    total_variation: float


def fit(counts: Mapping[Hashable, int], distribution: Mapping[Hashable, float]) -> Fit:
    """Compare counts with what they should be; what the distribution does not know has probability 0."""
    num_draws = sum(counts.values())
    cells = merged(distribution, num_draws)
    seen = [sum(counts.get(one, 0) for one in cell) for cell in cells]
    expected = [num_draws * sum(distribution[one] for one in cell) for cell in cells]
    assert sum(seen) == num_draws, "an impossible text came"
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in zip(seen, expected, strict=True))
    return Fit(
        num_draws,
        statistic,
        len(cells) - 1,
        upper_tail(statistic, len(cells) - 1),
        sum(abs(found - wanted) for found, wanted in zip(seen, expected, strict=True)) / 2 / num_draws,
    )


def merged(distribution: Mapping[Hashable, float], num_draws: int) -> list[list[Hashable]]:
    """Cells of a test: every outcome that is expected ten times, and all others together."""
    likely = [[one] for one, share in distribution.items() if share * num_draws >= _LEAST_EXPECTED]
    rare = [one for one, share in distribution.items() if share * num_draws < _LEAST_EXPECTED]
    return [*likely, rare] if rare else likely


def power(num_draws: int, degrees_of_freedom: int, level: float, total_variation: float) -> float:
    """The least probability with which a test at a level sees a total variation."""
    critical = critical_value(degrees_of_freedom, level)
    half = 2 * num_draws * total_variation**2
    most = int(half + 12 * (half + 1) ** 0.5 + 12)
    weights = [exp(-half + count * log(half) - lgamma(count + 1)) for count in range(most)]
    return sum(weight * upper_tail(critical, degrees_of_freedom + 2 * count) for count, weight in enumerate(weights))


def critical_value(degrees_of_freedom: int, level: float) -> float:
    """What a statistic of right counts passes with this probability."""
    low, high = 0.0, 100.0 + 10.0 * degrees_of_freedom
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, degrees_of_freedom) > level else (low, middle)
    return high


def upper_tail(statistic: float, degrees_of_freedom: int) -> float:
    """Probability that chi-square passes a number."""
    half = torch.tensor([degrees_of_freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
