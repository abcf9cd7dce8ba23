"""Lanes that compute as a record was made, and those that do not: where two logits nearly tie, others choose apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from runtime.backends.lane_device import Device

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord
    from decoding.schedule import Schedule
    from hwprofiles.profile import LaneProfile, Profile


def backends_of(profile: Profile, schedule: Schedule | None = None) -> dict[str, str]:
    """What computes on each lane of a profile, or on those of them that a schedule uses."""
    used = None if schedule is None else (schedule.target_lane, schedule.draft_lane)
    return {lane.name: _backend(lane) for lane in profile.lanes if used is None or lane.name in used}


def left_out_in_words(profile: Profile, record: AcceptanceRecord) -> str | None:
    """What a search over lanes of several back ends says of those that `as_recorded` leaves out; None if none are."""
    kept = {lane.name for lane in as_recorded(profile, record).lanes}
    found = {lane: backend for lane, backend in backends_of(profile).items() if lane not in kept}
    if not found:
        return None
    lanes = ", ".join(f"{lane} ({backend})" for lane, backend in found.items())
    return f"The record was made by {record.backend}, so lanes that compute otherwise are skipped: {lanes}."


def as_recorded(profile: Profile, record: AcceptanceRecord) -> Profile:
    """A profile without the lanes that compute otherwise than was recorded; itself where none or all would stay."""
    found = backends_of(profile)
    kept = {lane for lane, backend in found.items() if backend == record.backend}
    if record.assumed is not None or len(kept) in (0, len(found)):
        return profile

    def among(lanes: Collection[str]) -> bool:
        return kept.issuperset(lanes)

    return profile.model_copy(
        update={
            "lanes": tuple(lane for lane in profile.lanes if lane.name in kept),
            "links": tuple(link for link in profile.links if among(link.lanes)),
            "contention": tuple(pair for pair in profile.contention if among(pair.lanes)),
        }
    )


def _backend(lane: LaneProfile) -> str:
    """By its device; profiles of before it was written down have the lane's name."""
    return Device.of_lane(lane.device if ":" in lane.device else lane.name).backend
