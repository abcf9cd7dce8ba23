"""What work takes in real runs over what it takes in a loop: one level for all lanes, unless one lane's differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import NamedTuple

from calibrate.fitting.ratios import Ratio, estimate

_LEAST_OWN = 3
"""Fewer runs of a lane say nothing about how they vary."""


class Level(NamedTuple):
    """A factor, and the half-width (90 %) of what it may be off by, relative to it.

    `is_own` is whether a lane has it for itself; the error of any other is common to all that share it.
    """

    factor: float = 1.0
    half_width: float = 0.0
    is_own: bool = False


def shared_levels(by_lane: Mapping[str, Sequence[Ratio]]) -> dict[str, Level]:
    """The mean over the runs of all lanes; a lane's own where its interval excludes that. One without any run."""
    together = _together(by_lane)
    if not together:
        return dict.fromkeys(by_lane, Level())
    whole = estimate(together)
    common = Level(whole.value, exp(whole.log_half_width) - 1)
    levels = dict.fromkeys(by_lane, common)
    for lane, ratios in by_lane.items():
        if len(ratios) < _LEAST_OWN or len(ratios) == len(together):
            continue
        own = estimate(ratios)
        if abs(log(own.value / whole.value)) > own.log_half_width:
            levels[lane] = Level(own.value, exp(own.log_half_width) - 1, is_own=True)
    return levels


def grouped_levels(
    by_lane: Mapping[str, Sequence[Ratio]],
    group_of: Mapping[str, int],
    instead: Mapping[str, Level] | None = None,
) -> dict[str, Level]:
    """The same among lanes of one group (as many threads).

    A group without any run has the levels `instead`, or without them that of all other lanes together.
    """
    levels = dict[str, Level]()
    for group in dict.fromkeys(group_of.values()):
        alike = {lane: by_lane.get(lane, ()) for lane, own in group_of.items() if own == group}
        if any(alike.values()):
            levels |= shared_levels(alike)
        elif instead is not None:
            levels |= {lane: instead[lane] for lane in alike}
        else:
            levels |= dict.fromkeys(alike, next(iter(shared_levels({"all": _together(by_lane)}).values())))
    return levels


def _together(by_lane: Mapping[str, Sequence[Ratio]]) -> list[Ratio]:
    return [ratio for ratios in by_lane.values() for ratio in ratios]
