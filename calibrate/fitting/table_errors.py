"""Tables that are less certain than before: by their levels in runs, and by what checks show."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.fitting.levels import Level
from hwprofiles.lane_profile import DECODING_PARTS
from hwprofiles.profile import LanePart, LaneProfile, LatencyTable


def at_level(lane: LaneProfile, parts: Sequence[LanePart], level: Level) -> LaneProfile:
    """Return the lane with some parts at their level in runs, each as uncertain as that is."""
    return less_certain(lane.scaled(dict.fromkeys(parts, level.factor)), parts, level.half_width)


def less_certain(lane: LaneProfile, parts: Sequence[LanePart], half_width: float) -> LaneProfile:
    """Return the lane with another, independent error of some parts."""
    return lane.changed(dict.fromkeys(parts, half_width), LatencyTable.less_certain)


def with_head_level(lane: LaneProfile, drafter: str, level: Level) -> LaneProfile:
    """Return the lane with a head's steps, and the first ones of its rollouts, at their level in runs."""
    table = lane.heads[drafter].scaled(level.factor).less_certain(level.half_width)
    lane = lane.model_copy(update={"heads": {**lane.heads, drafter: table}})
    start = lane.overhead("rollout_start", drafter)
    if not start.seconds:
        return lane
    start = start.model_copy(update={"seconds": start.seconds * level.factor})
    return lane.with_overhead("rollout_start", start, drafter)


def with_check_errors(lane: LaneProfile, own: float, of_schedules: float) -> LaneProfile:
    """The lane with its own error, and all tables that decoding uses less certain by that of single schedules."""
    return less_certain(lane, DECODING_PARTS, of_schedules).model_copy(update={"relative_error": own})
