"""Levels: how much longer work takes in real runs than in a timing loop. One for all lanes, unless a lane differs.

A loop and a run do the same work, so levels are close to one. A few short runs on a machine whose speed changes are
weak evidence, so a level is the mean of that prior and of the runs, weighted by their certainty (a normal prior on its
logarithm).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, hypot, inf, log, log1p, sqrt
from typing import Final, NamedTuple, TypeVar

from calibrate.fitting.ratios import NORMAL_90, AnchorRatio, estimate

K = TypeVar("K")
"""Of a lane, or of a pair of them."""
_LEAST_OWN: Final = 3
"""Fewer runs of a lane say nothing about how they vary."""
_MOST_SPREADS: Final = 4
"""Of a prior: in five demos no level was further away."""


class Level(NamedTuple):
    """A factor on times, and the half-width (90 %) of its relative error, which lanes share unless it `is_own`."""

    factor: float = 1.0
    half_width: float = 0.0
    is_own: bool = False


class Prior(NamedTuple):
    """What is known of a level before any run: the level it lies around, and its relative standard deviation."""

    spread: float
    around: Level = Level()

    @property
    def most(self) -> float:
        """The share by which work may take longer before that counts as unexplained."""
        return _MOST_SPREADS * self.spread


def settled(ratios: Sequence[AnchorRatio], prior: Prior) -> Level:
    """Return the level by prior and runs together; by the prior alone where there are none."""
    width = hypot(NORMAL_90 * prior.spread, log1p(prior.around.half_width))
    if not ratios:
        return Level(prior.around.factor, exp(width) - 1)
    found = estimate(ratios)
    own_width = found.log_half_width
    share = 1.0 if width == inf or not own_width else width**2 / (width**2 + own_width**2)
    factor = exp(share * log(found.value) + (1 - share) * log(prior.around.factor))
    return Level(factor, exp(sqrt(share) * own_width) - 1)


def shared_levels(by_lane: Mapping[K, Sequence[AnchorRatio]], prior: Prior) -> dict[K, Level]:
    """Return one level from the runs of all lanes; a lane whose runs exclude it has its own, around that one."""
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


def more(level: Level, prior: Prior) -> float:
    """Return the share by which work takes longer, by its level: from 0 to `Prior.most`."""
    return min(max(0.0, level.factor - 1), prior.most)


def not_understood(levels: Mapping[str, Level], prior: Prior, what: str, *, is_kept: bool = False) -> Iterator[str]:
    """Yield a note if work took longer than `Prior.most` on some lanes; no more is counted unless it `is_kept`."""
    beyond = {lane: level.factor - 1 for lane, level in levels.items() if level.factor - 1 > prior.most}
    if beyond:
        found, lanes = f"{100 * max(beyond.values()):.0f} %", ", ".join(beyond)
        counted = "" if is_kept else f"; {100 * prior.most:.0f} % is counted"
        yield f"{what} took up to {found} more than usual on {lanes}, for unknown reasons{counted}."
