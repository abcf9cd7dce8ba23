"""A measured lane carried to another device: its own times, by the ratio of what rooflines say of both devices.

What a roofline leaves out (kernels that are slower than they could be, work between layers) comes along with the
measurement, so this is closer than a roofline alone where both devices run the same software. Its errors are those of
the measurement, of both devices' sheets, and of the roofline.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot
from typing import Any

from costs.cost_model import Part, PartKind
from decoding.errors import ProfileError
from hwprofiles.latency_table import LatencyTable
from hwprofiles.overheads import Event
from hwprofiles.profile import LaneProfile
from sim.derived.roofline import DRAFT_PARTS, ROOFLINE_ERROR, TARGET_PARTS, RooflineCost


def carried_lane(lane: LaneProfile, measured_on: RooflineCost, to: RooflineCost, *, name: str) -> LaneProfile:
    """The lane as it would be on another device.

    Parts that no roofline knows (heads, streams, features) are left out. What passes take more that reply their states
    goes with the target's layers, and what the draft finds cold with its steps.

    Args:
        lane: measured.
        measured_on: the roofline of the same models on the device that was measured.
        to: their roofline on the other one.
        name: of the new lane.

    Raises:
        ProfileError: the two rooflines are of different models, or a part does not fit the other device.
    """
    if (measured_on.target, measured_on.draft) != (to.target, to.draft):
        msg = f"lane {lane.name!r} is carried with the models it was measured with, not with others"
        raise ProfileError(msg)
    tables: dict[str, Any] = {kind: _carried(table, Part(kind), measured_on, to) for kind, table in _measured(lane)}
    colder, slower = (_ratio(getattr(lane, kind), tables.get(kind)) for kind in ("draft_step", "layer"))
    exits = {layer: _carried(table, Part("exit", layer), measured_on, to) for layer, table in lane.exit.items()}
    factors: dict[Event, float] = {"rollout_start": colder, "branch_step": colder, "features": slower}
    return LaneProfile(
        name=name,
        device=to.device.name,
        dispatch_s=to.device.graph_s or lane.dispatch_s,
        overheads=lane.with_overheads_scaled(factors).overheads,
        pace_spread=lane.pace_spread,
        exit=exits,
        relative_error=hypot(lane.relative_error, measured_on.device.reading_error, to.device.reading_error),
        **tables,
    )


def _ratio(here: LatencyTable | None, there: LatencyTable | None) -> float:
    """Of two tables' first times; 0 without them, where nothing can be called either."""
    return there.seconds[0][0] / here.seconds[0][0] if here and there else 0.0


def _measured(lane: LaneProfile) -> Iterator[tuple[PartKind, LatencyTable]]:
    for kind in (*TARGET_PARTS, *DRAFT_PARTS):
        if kind != "exit" and (table := getattr(lane, kind)) is not None:
            yield kind, table


def _carried(table: LatencyTable, part: Part, here: RooflineCost, there: RooflineCost) -> LatencyTable:
    def ratio(rows: int, context: int) -> float:
        return there.one(part, rows, context) / here.one(part, rows, context)

    seconds = tuple(
        tuple(time_s * ratio(rows, context) for time_s, context in zip(line, table.contexts, strict=True))
        for line, rows in zip(table.seconds, table.rows, strict=True)
    )
    return table.model_copy(
        update={
            "seconds": seconds,
            "relative_error": hypot(table.relative_error, ROOFLINE_ERROR),
            "bytes_per_call": there.facts(part).bytes_per_call,
            "source": f"{table.source}, carried from {here.device.name} to {there.device.name} by rooflines",
        }
    )
