"""A profile with one part made faster or slower, for asking what another machine or draft would change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from hwprofiles.profile import LaneProfile, LatencyTable, LinkProfile, Profile

K = TypeVar("K", int, str)

Part = Literal["target", "draft", "link"]


def with_speed(profile: Profile, part: Part, factor: float) -> Profile:
    """`profile` with one part `factor` times as fast, on all lanes or links.

    `target` is its layers, head and exits; `draft` steps of whatever drafts, and what streams add to the target's pass;
    `link` latency and bandwidth. Dispatch and the driver's own time stay.
    """
    if part == "link":
        return profile.model_copy(update={"links": tuple(_faster_link(link, factor) for link in profile.links)})
    change = _faster_target if part == "target" else _faster_draft
    return profile.model_copy(update={"lanes": tuple(change(lane, factor) for lane in profile.lanes)})


def _faster_target(lane: LaneProfile, factor: float) -> LaneProfile:
    return lane.model_copy(
        update={
            "layer": _faster(lane.layer, factor),
            "lm_head": _faster(lane.lm_head, factor),
            "exit": _all_faster(lane.exit, factor),
        }
    )


def _faster_draft(lane: LaneProfile, factor: float) -> LaneProfile:
    return lane.model_copy(
        update={
            "draft_step": _faster(lane.draft_step, factor),
            "draft_step_features": _faster(lane.draft_step_features, factor),
            "draft_streams": _faster(lane.draft_streams, factor),
            "heads": _all_faster(lane.heads, factor),
            "streams": _all_faster(lane.streams, factor),
        }
    )


def _faster_link(link: LinkProfile, factor: float) -> LinkProfile:
    return link.model_copy(update={"latency_s": link.latency_s / factor, "bytes_per_s": link.bytes_per_s * factor})


def _all_faster(tables: Mapping[K, LatencyTable], factor: float) -> dict[K, LatencyTable | None]:
    return {key: _faster(table, factor) for key, table in tables.items()}


def _faster(table: LatencyTable | None, factor: float) -> LatencyTable | None:
    """A new table, not a copy: a copy would carry the old one's cached grid along."""
    if table is None:
        return None
    seconds = tuple(tuple(time_s / factor for time_s in line) for line in table.seconds)
    return LatencyTable(**table.model_dump(exclude={"seconds"}), seconds=seconds)
