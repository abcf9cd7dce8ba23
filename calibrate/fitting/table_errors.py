"""Tables that are less certain than before: by their levels in runs, and by what checks show."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import overload

from calibrate.fitting.levels import Level
from hwprofiles.profile import LanePart, LaneProfile, LatencyTable

_SINGLE = ("layer", "lm_head", "draft_step", "draft_step_features", "draft_start", "draft_streams")
_SEVERAL = ("exit", "heads", "streams")


@overload
def less_certain(table: LatencyTable, half_width: float) -> LatencyTable: ...
@overload
def less_certain(table: None, half_width: float) -> None: ...
@overload
def less_certain(table: LatencyTable | None, half_width: float) -> LatencyTable | None: ...
def less_certain(table: LatencyTable | None, half_width: float) -> LatencyTable | None:
    """The table with another, independent error; None stays."""
    if table is None:
        return None
    return table.model_copy(update={"relative_error": hypot(table.relative_error, half_width)})


def at_level(lane: LaneProfile, parts: Sequence[LanePart], level: Level) -> LaneProfile:
    """Return the lane with some parts at their level in runs, each as uncertain as that is."""
    lane = lane.scaled(dict.fromkeys(parts, level.factor))
    return lane.model_copy(update={part: less_certain(getattr(lane, part), level.half_width) for part in parts})


def with_head_level(lane: LaneProfile, drafter: str, level: Level) -> LaneProfile:
    """Return the lane with a head's steps, and the first ones of its rollouts, at their level in runs."""
    table = less_certain(lane.heads[drafter].scaled(level.factor), level.half_width)
    lane = lane.model_copy(update={"heads": {**lane.heads, drafter: table}})
    start = lane.overhead("rollout_start", drafter)
    if not start.seconds:
        return lane
    start = start.model_copy(update={"seconds": start.seconds * level.factor})
    return lane.with_overhead("rollout_start", start, drafter)


def with_check_errors(lane: LaneProfile, own: float, of_schedules: float) -> LaneProfile:
    """The lane with its own error, and all tables that decoding uses less certain by that of single schedules."""
    tables = {name: less_certain(getattr(lane, name), of_schedules) for name in _SINGLE}
    several = {
        name: {key: less_certain(table, of_schedules) for key, table in getattr(lane, name).items()}
        for name in _SEVERAL
    }
    return lane.model_copy(update={**tables, **several, "relative_error": own})
