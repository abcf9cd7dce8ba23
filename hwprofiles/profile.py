"""A profile: what was measured on one machine, and its errors. Written by calibration, read by the simulator."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from decoding.errors import ProfileError
from decoding.validation import Many, Pair
from decoding.yaml_file import StrictModel, load_yaml, save_yaml
from hwprofiles.bounds import Bytes, BytesPerSecond, Factor, RelativeError, Seconds
from hwprofiles.lane_cores import split_pairs, whole_lanes
from hwprofiles.lane_profile import LanePart, LaneProfile
from hwprofiles.latency_table import Anchor, LatencyTable

__all__ = [
    "BYTES_PER_CANDIDATE",
    "Anchor",
    "Contention",
    "LanePart",
    "LaneProfile",
    "LatencyTable",
    "LinkProfile",
    "Profile",
    "load_profile",
    "save_profile",
]

OfTwoLanes = TypeVar("OfTwoLanes", "Contention", "LinkProfile")
BYTES_PER_CANDIDATE = 8
"""A candidate crosses a link as a 32-bit id and a 32-bit log-prob."""


class Contention(StrictModel):
    """What two lanes cost each other while both work.

    Attributes:
        lanes: the target's lane, then the draft's.
        slowdown: for each lane, its latency while the other works over its latency alone.
        anchor_slowdown: the same of anchors on both lanes at the time of measuring; None where there were none.
        pool_bytes_per_s: bandwidth of a memory that both read: each operation takes its max-min fair share of it,
            besides that slowdown; None if it never binds.
        relative_error: half-width (90 %) of the error of either slowdown.
    """

    lanes: Pair[str]
    slowdown: Pair[Factor]
    anchor_slowdown: Pair[Factor] | None = None
    pool_bytes_per_s: BytesPerSecond | None = None
    relative_error: RelativeError = 0.0
    source: str


class LinkProfile(StrictModel):
    """The way between two lanes: `latency_s` + bytes / `bytes_per_s`."""

    lanes: Pair[str]
    latency_s: Seconds
    bytes_per_s: BytesPerSecond
    source: str


class Profile(StrictModel):
    """Everything that the simulator knows about one machine and one model pair.

    Errors are relative half-widths (90 %).

    Attributes:
        dtype, draft_dtype: how the weights of target and draft are stored; None: the draft's as the target's.
        round_overhead_s: the driver's own time per round, between the target's reply and the next operation.
        memory_pool_bytes_per_s: `pool_bytes_per_s` of all pairs of lanes that have none of their own.
        features_bytes_per_row: hidden states of one row that an exit message carries to a draft with features.
        calibration_s: how long measuring took.
        relative_error: common error of all times; ratios of two schedules are free of it.
        pace_error: change of the machine's pace between the calibration and runs; likewise.
        schedule_error: common error of one schedule's times, beyond that; a ratio of two schedules has it twice.
        is_row_invariant: whether a row's result does not depend on how many others are computed with it; None if
            that was not tested.
        samples: name of the file beside this one that holds all timings; None if they were not kept.
        notes: remarks on how it was measured, for people.
    """

    format: Literal["mirrorsd-profile-4"] = "mirrorsd-profile-4"
    host: dict[str, Any]
    target: str
    drafter: str | None
    dtype: str
    draft_dtype: str | None = None
    num_layers: Annotated[int, Field(ge=1, le=10_000)]
    lanes: Annotated[Many[LaneProfile], Field(min_length=1)]
    links: Many[LinkProfile] = ()
    contention: Many[Contention] = ()
    memory_pool_bytes_per_s: BytesPerSecond | None = None
    features_bytes_per_row: Bytes = 0.0
    round_overhead_s: Seconds = 0.0
    calibration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    relative_error: RelativeError = 0.0
    pace_error: RelativeError = 0.0
    schedule_error: RelativeError = 0.0
    is_row_invariant: bool | None = None
    samples: str | None = None
    notes: Many[str] = ()

    @model_validator(mode="after")
    def _known_lanes(self) -> Self:
        names = [lane.name for lane in self.lanes]
        if len(set(names)) != len(names):
            raise ValueError(f"lane names repeat: {names}")
        pairs = [link.lanes for link in self.links] + [entry.lanes for entry in self.contention]
        for name in (name for pair in pairs for name in pair):
            if name not in names:
                raise ValueError(f"a link or contention names the lane {name!r}; lanes are {', '.join(names)}")
        return self

    @property
    def common_error(self) -> float:
        """The larger of `relative_error` and `pace_error`."""
        return max(self.relative_error, self.pace_error)

    def lane(self, name: str) -> LaneProfile:
        """Return the lane of that name; `ProfileError` where there is none lists the names."""
        for lane in self.lanes:
            if lane.name == name:
                return lane
        names = ", ".join(lane.name for lane in self.lanes)
        raise ProfileError(f"the profile has no lane {name!r}; it has {names}")

    def split_pairs(self) -> list[tuple[str, str]]:
        """Return every two lanes that share no core and no device, both ways round."""
        devices = {lane.name: set(lane.devices) for lane in self.lanes}
        return [pair for pair in split_pairs(self.lanes) if not devices[pair[0]] & devices[pair[1]]]

    def take_turns(self, one: str, other: str) -> bool:
        """Return whether two lanes are one, or a group and one of its devices; two streams of a device work at once."""
        devices = [{*self.lane(name).devices} for name in (one, other)]
        return one == other or (devices[0] != devices[1] and not devices[0].isdisjoint(devices[1]))

    def whole_lanes(self) -> list[str]:
        """Return the lanes that are no part of another one."""
        return whole_lanes(self.lanes)

    def link(self, target_lane: str, draft_lane: str) -> LinkProfile | None:
        """Return the link between two lanes, that of the other direction where there is no other; None without one."""
        return _either_way(self.links, target_lane, draft_lane)

    def contention_of(self, target_lane: str, draft_lane: str) -> Contention | None:
        """Return what two lanes cost each other, the other way round where there is no other; None without one."""
        return _either_way(self.contention, target_lane, draft_lane)

    def slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float]:
        """Return latency while both work over latency alone, of target and draft; (1, 1) for an unknown pair."""
        entry = self.contention_of(target_lane, draft_lane)
        if entry is None:
            return 1.0, 1.0
        return entry.slowdown if entry.lanes[0] == target_lane else entry.slowdown[::-1]

    def anchor_slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float] | None:
        """Return the same of anchors; None for a pair without."""
        entry = self.contention_of(target_lane, draft_lane)
        if entry is None or entry.anchor_slowdown is None:
            return None
        return entry.anchor_slowdown if entry.lanes[0] == target_lane else entry.anchor_slowdown[::-1]

    def pool_bytes_per_s(self, target_lane: str, draft_lane: str) -> float | None:
        """Return the bandwidth of the memory that two lanes share; None if it never binds."""
        entry = self.contention_of(target_lane, draft_lane)
        return (entry and entry.pool_bytes_per_s) or self.memory_pool_bytes_per_s

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Return what `repr` shows: the tables would fill pages."""
        yield "target", self.target
        yield "drafter", self.drafter
        yield "lanes", [lane.name for lane in self.lanes]


def _either_way(entries: Sequence[OfTwoLanes], one: str, other: str) -> OfTwoLanes | None:
    for lanes in ((one, other), (other, one)):
        for entry in reversed(entries):
            if entry.lanes == lanes:
                return entry
    return None


def load_profile(path: str | Path) -> Profile:
    """Return the profile of a YAML file; `ConfigError` where it is missing or wrong names file, line and value."""
    return load_yaml(path, Profile)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile YAML atomically, defaults left out; what is cut short is refused by its end."""
    data = {"format": profile.format} | profile.model_dump(mode="json", exclude_defaults=True)
    save_yaml(data, path, is_marked=True)
