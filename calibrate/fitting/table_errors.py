"""Tables that are less certain than before: by their levels in runs, and by what checks show."""

from __future__ import annotations

from math import hypot
from typing import overload

from calibrate.fitting.levels import Level
from hwprofiles.profile import LaneProfile, LatencyTable

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


def with_step_errors(lane: LaneProfile, step: Level, features_step: Level) -> LaneProfile:
    """Steps of the draft may be off by what their levels may; that of the target is no table's own."""
    return lane.model_copy(
        update={
            "draft_step": less_certain(lane.draft_step, step.half_width),
            "draft_step_features": less_certain(lane.draft_step_features, features_step.half_width),
            "draft_start": less_certain(lane.draft_start, step.half_width),
            "draft_streams": less_certain(lane.draft_streams, step.half_width),
        }
    )


def with_head_level(lane: LaneProfile, drafter: str, found: Level) -> LaneProfile:
    """The lane with a head's steps at their level."""
    table = less_certain(lane.heads[drafter].scaled(found.factor), found.half_width)
    wakes = {name: wake_s * (found.factor if name == drafter else 1.0) for name, wake_s in lane.head_wake_s.items()}
    return lane.model_copy(update={"heads": {**lane.heads, drafter: table}, "head_wake_s": wakes})


def with_check_errors(lane: LaneProfile, own: float, of_schedules: float) -> LaneProfile:
    """The lane with its own error, and all tables that decoding uses less certain by that of single schedules."""
    tables = {name: less_certain(getattr(lane, name), of_schedules) for name in _SINGLE}
    several = {
        name: {key: less_certain(table, of_schedules) for key, table in getattr(lane, name).items()}
        for name in _SEVERAL
    }
    return lane.model_copy(update={**tables, **several, "relative_error": own})
