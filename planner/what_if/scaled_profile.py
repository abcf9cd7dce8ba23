"""A profile with one part made faster or slower, for asking what another machine or draft would change."""

from __future__ import annotations

from typing import Final, Literal

from hwprofiles.lane_profile import PARTS, TARGET_PARTS, Event
from hwprofiles.profile import Profile

Part = Literal["target", "draft", "link"]

_DRAFT_PARTS: Final = tuple(part for part in PARTS if part not in TARGET_PARTS)
_TARGET_EVENTS: Final[tuple[Event, ...]] = ("features",)
_DRAFT_EVENTS: Final[tuple[Event, ...]] = ("rollout_start", "branch_step")


def with_speed(profile: Profile, part: Part, factor: float) -> Profile:
    """`profile` with one part `factor` times as fast, on all lanes or links.

    `target` is its layers, output head, exits, reading of prompts, and replying of states; `draft` steps of whatever
    drafts, its reading of prompts, and what streams add to the target's pass; `link` latency and bandwidth. Dispatch
    and the driver's own time stay.
    """
    if part == "link":
        links = tuple(
            link.model_copy(update={"latency_s": link.latency_s / factor, "bytes_per_s": link.bytes_per_s * factor})
            for link in profile.links
        )
        return profile.model_copy(update={"links": links})
    factors = dict.fromkeys(TARGET_PARTS if part == "target" else _DRAFT_PARTS, 1 / factor)
    events = dict.fromkeys(_TARGET_EVENTS if part == "target" else _DRAFT_EVENTS, 1 / factor)
    lanes = tuple(lane.scaled(factors).with_overheads_scaled(events) for lane in profile.lanes)
    return profile.model_copy(update={"lanes": lanes})
