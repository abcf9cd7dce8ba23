"""What work takes in real runs over what it takes in a loop: one level for all lanes, unless one lane's differs.

A loop and a run do the same work, so levels are near one, and a handful of short runs on a machine that changes its
speed says less than that: a level is the mean of both by their certainty (a normal prior on its logarithm).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, hypot, inf, log, log1p, sqrt
from typing import Final, NamedTuple, TypeVar

from calibrate.fitting.ratios import NORMAL_90, Ratio, estimate

K = TypeVar("K")
"""Of a lane, or of a pair of them."""
_LEAST_OWN: Final = 3
"""Fewer runs of a lane say nothing about how they vary."""
_MOST_SPREADS: Final = 4
"""Of a prior: in five demos no level was further away."""


class Level(NamedTuple):
    """A factor, and the half-width (90 %) of what it may be off by, relative to it.

    `is_own` is whether a lane has it for itself; the error of any other is common to all that share it.
    """

    factor: float = 1.0
    half_width: float = 0.0
    is_own: bool = False


class Prior(NamedTuple):
    """What a level is taken to be before any run: around a level known, with a relative standard deviation."""

    spread: float
    around: Level = Level()

    @property
    def most(self) -> float:
        """The share by which work may take more for reasons that are understood."""
        return _MOST_SPREADS * self.spread


def settled(ratios: Sequence[Ratio], prior: Prior) -> Level:
    """The level by prior and runs together; by the prior alone where there are none."""
    width = hypot(NORMAL_90 * prior.spread, log1p(prior.around.half_width))
    if not ratios:
        return Level(prior.around.factor, exp(width) - 1)
    found = estimate(ratios)
    own_width = found.log_half_width
    share = 1.0 if width == inf or not own_width else width**2 / (width**2 + own_width**2)
    factor = exp(share * log(found.value) + (1 - share) * log(prior.around.factor))
    return Level(factor, exp(sqrt(share) * own_width) - 1)


def shared_levels(by_lane: Mapping[K, Sequence[Ratio]], prior: Prior) -> dict[K, Level]:
    """The level of all lanes' runs; a lane's own, settled around that, where its runs' interval excludes it."""
    together = [ratio for ratios in by_lane.values() for ratio in ratios]
    common = settled(together, prior)
    levels = dict.fromkeys(by_lane, common)
    mean = estimate(together).value if together else 1.0
    for lane, ratios in by_lane.items():
        if len(ratios) < _LEAST_OWN or len(ratios) == len(together):
            continue
        own = estimate(ratios)
        if abs(log(own.value / mean)) > own.log_half_width:
            levels[lane] = settled(ratios, Prior(prior.spread, Level(common.factor)))._replace(is_own=True)
    return levels


def grouped_levels(
    by_lane: Mapping[str, Sequence[Ratio]], group_of: Mapping[str, int], priors: Mapping[str, Prior]
) -> dict[str, Level]:
    """The same among lanes of one group (as many threads), by the prior of its first lane."""
    levels = dict[str, Level]()
    for group in dict.fromkeys(group_of.values()):
        alike = {lane: by_lane.get(lane, ()) for lane, own in group_of.items() if own == group}
        levels |= shared_levels(alike, priors[next(iter(alike))])
    return levels


def more(level: Level, prior: Prior) -> float:
    """The share that work takes more by its level: not less than nothing, and no more than is understood."""
    return min(max(0.0, level.factor - 1), prior.most)


def not_understood(levels: Mapping[str, Level], prior: Prior, what: str, *, is_kept: bool = False) -> Iterator[str]:
    """A sentence if work took more on some lanes than `most`, which is all that is counted unless it `is_kept`."""
    beyond = {lane: level.factor - 1 for lane, level in levels.items() if level.factor - 1 > prior.most}
    if beyond:
        found, lanes = f"{100 * max(beyond.values()):.0f} %", ", ".join(beyond)
        counted = "" if is_kept else f"; {100 * prior.most:.0f} % is counted"
        yield f"{what} took up to {found} more than usual on {lanes}, which is not understood{counted}."
