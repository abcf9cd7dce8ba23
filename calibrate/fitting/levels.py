"""Levels: ratios of times in decoded runs to times in a timing loop, common to all lanes unless a lane clearly differs.

A loop and a run do the same work, so levels are close to 1. Since a few short runs on a machine of changing speed are
weak evidence, a level combines this prior (normal on the logarithm) with the runs, weighted by their precision.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, hypot, inf, log, log1p, sqrt
from typing import Final, NamedTuple, TypeVar

from calibrate.fitting.ratios import NORMAL_90, AnchorRatio, estimate

K = TypeVar("K")
"""The key of a lane, or of a pair of lanes."""
_LEAST_OWN: Final = 3
"""Least number of runs for a lane's own level: fewer do not show how much runs scatter."""
_MOST_SPREADS: Final = 4
"""Largest plausible distance of a level, in spreads of its prior: in five demos no level was further away."""


class Level(NamedTuple):
    """A factor on times, and its relative error (half-width, 90 %); lanes have it in common unless it `is_own`."""

    factor: float = 1.0
    half_width: float = 0.0
    is_own: bool = False


class Prior(NamedTuple):
    """The knowledge of a level before any run: the expected level, and the relative standard deviation around it."""

    spread: float
    around: Level = Level()

    @property
    def most(self) -> float:
        """The largest relative increase of times that counts as explained."""
        return _MOST_SPREADS * self.spread


def settled(ratios: Sequence[AnchorRatio], prior: Prior) -> Level:
    """Return the level from prior and runs; from the prior alone if there are no runs."""
    width = hypot(NORMAL_90 * prior.spread, log1p(prior.around.half_width))
    if not ratios:
        return Level(prior.around.factor, exp(width) - 1)
    found = estimate(ratios)
    own_width = found.log_half_width
    share = 1.0 if width == inf or not own_width else width**2 / (width**2 + own_width**2)
    factor = exp(share * log(found.value) + (1 - share) * log(prior.around.factor))
    return Level(factor, exp(sqrt(share) * own_width) - 1)


def shared_levels(by_lane: Mapping[K, Sequence[AnchorRatio]], prior: Prior) -> dict[K, Level]:
    """Return a common level from the runs of all lanes; a lane whose runs exclude it gets its own, with it as prior."""
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
    """Return the relative increase of times by a level, limited to 0..`Prior.most`."""
    return min(max(0.0, level.factor - 1), prior.most)


def not_understood(levels: Mapping[str, Level], prior: Prior, what: str, *, is_kept: bool = False) -> Iterator[str]:
    """Yield a note if the increase exceeds `Prior.most` on some lanes; `is_kept`: it is used without that limit."""
    beyond = {lane: level.factor - 1 for lane, level in levels.items() if level.factor - 1 > prior.most}
    if beyond:
        found, lanes = f"{100 * max(beyond.values()):.0f} %", ", ".join(beyond)
        counted = "" if is_kept else f"; {100 * prior.most:.0f} % is counted"
        yield f"{what} took up to {found} more than usual on {lanes}, for unknown reasons{counted}."
