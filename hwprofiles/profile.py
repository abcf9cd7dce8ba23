"""A profile: what was measured on one machine, and how well. Written by calibration, read by the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from decoding.errors import ProfileError
from decoding.validation import Many, Pair
from decoding.yaml_file import StrictModel, load_yaml, save_yaml
from hwprofiles.bounds import Bytes, BytesPerSecond, Factor, RelativeError, Seconds
from hwprofiles.lane_profile import LanePart, LaneProfile
from hwprofiles.latency_table import Anchor, LatencyTable
from hwprofiles.placement import split_pairs, whole_lanes

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

BYTES_PER_CANDIDATE = 8
"""A candidate crosses a link as a 32-bit id and a 32-bit log-prob."""


class Contention(StrictModel):
    """What two lanes cost each other while both work.

    Attributes:
        lanes: the lane that ran the target, then the lane that ran the draft.
        slowdown: for each lane of the pair, its latency while the other works over its latency alone.
        anchor_slowdown: the same of anchors on both lanes at once: how much lanes were in each other's way when this
            was measured. None where nobody took any.
        pool_bytes_per_s: of a memory that both read, of which each takes its max-min fair share, operation by
            operation, besides that slowdown; None if it never binds.
        relative_error: half-width (90 %) of what either may be off by.
        source: where the numbers come from.
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

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds of one message."""
        return self.latency_s + num_bytes / self.bytes_per_s


class Profile(StrictModel):
    """Everything the simulator knows about one machine and one model pair.

    Attributes:
        round_overhead_s: the driver's own time per round, between the target's reply and the next operation.
        memory_pool_bytes_per_s: as `pool_bytes_per_s` of a contention, for all lanes that have none of their own.
        features_bytes_per_row: hidden states of one row that an exit message carries to a draft with features.
        calibration_s: how long measuring took.
        relative_error: what all times may be off by together (half-width, 90 %): the ratio of two schedules is free
            of it.
        pace_error: what the machine's pace may change by between the calibration and runs (half-width, 90 %), likewise.
        schedule_error: what all times of a schedule may be off by together (half-width, 90 %), beyond what they share
            with those of others: a ratio of two schedules has it twice.
        is_row_invariant: whether a row's result does not depend on how many others are computed with it; None if
            that was not tested.
        samples: name of the file next to this one that holds all that was timed; None if nothing was kept.
        notes: remarks on how it was measured, for people.
    """

    format: Literal["mirrorsd-profile-4"] = "mirrorsd-profile-4"
    host: dict[str, Any]
    target: str
    drafter: str | None
    dtype: str
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
            msg = f"lane names repeat: {names}"
            raise ValueError(msg)
        pairs = [pair.lanes for pair in self.links] + [pair.lanes for pair in self.contention]
        for name in (name for pair in pairs for name in pair):
            if name not in names:
                msg = f"a link or contention names the lane {name!r}; lanes are {', '.join(names)}"
                raise ValueError(msg)
        return self

    @property
    def common_error(self) -> float:
        """What all times may be off by together: what calibration saw, or the pace may change by, if that is more."""
        return max(self.relative_error, self.pace_error)

    def lane(self, name: str) -> LaneProfile:
        """The lane of that name.

        Raises:
            ProfileError: there is none; lists the names.
        """
        for lane in self.lanes:
            if lane.name == name:
                return lane
        msg = f"the profile has no lane {name!r}; it has {', '.join(lane.name for lane in self.lanes)}"
        raise ProfileError(msg)

    def split_pairs(self) -> list[tuple[str, str]]:
        """Names of every two lanes that share no core and no device, both ways round."""
        devices = {lane.name: set(lane.devices) for lane in self.lanes}
        return [pair for pair in split_pairs(self.lanes) if not devices[pair[0]] & devices[pair[1]]]

    def whole_lanes(self) -> list[str]:
        """Names of the lanes that are no part of another one."""
        return whole_lanes(self.lanes)

    def link(self, target_lane: str, draft_lane: str) -> LinkProfile | None:
        """The link between two lanes; one that is known the other way round only serves both ways."""
        links = {link.lanes: link for link in self.links}
        return links.get((target_lane, draft_lane)) or links.get((draft_lane, target_lane))

    def slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float]:
        """Latency of target and draft while both work over their latency alone; (1, 1) for an unknown pair.

        If the pair was measured only the other way round, each lane keeps its own slowdown.
        """
        entry = self.contention_of(target_lane, draft_lane)
        return (1.0, 1.0) if entry is None else _by_role(entry, entry.slowdown, target_lane)

    def anchor_slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float] | None:
        """The same of anchors; None for a pair without."""
        entry = self.contention_of(target_lane, draft_lane)
        if entry is None or entry.anchor_slowdown is None:
            return None
        return _by_role(entry, entry.anchor_slowdown, target_lane)

    def pool_bytes_per_s(self, target_lane: str, draft_lane: str) -> float | None:
        """Bandwidth of the memory that two lanes share; None if it never binds."""
        entry = self.contention_of(target_lane, draft_lane)
        return (entry and entry.pool_bytes_per_s) or self.memory_pool_bytes_per_s

    def contention_of(self, target_lane: str, draft_lane: str) -> Contention | None:
        """What was measured of two lanes at once, the other way round only where that is all there is."""
        entries = {entry.lanes: entry for entry in self.contention}
        return entries.get((target_lane, draft_lane)) or entries.get((draft_lane, target_lane))

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Of `repr` and `str`: whose profile it is. The tables would fill pages."""
        yield "target", self.target
        yield "drafter", self.drafter
        yield "lanes", [lane.name for lane in self.lanes]


def _by_role(entry: Contention, of_lanes: tuple[float, float], target_lane: str) -> tuple[float, float]:
    """(target's, draft's) of what an entry has by its lanes."""
    first, second = of_lanes
    return (first, second) if entry.lanes[0] == target_lane else (second, first)


def load_profile(path: str | Path) -> Profile:
    """Read a profile YAML.

    Raises:
        ConfigError: the file is missing or wrong; names file, line and value.
    """
    return load_yaml(path, Profile)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile YAML atomically, defaults left out."""
    save_yaml({"format": profile.format} | profile.model_dump(mode="json", exclude_defaults=True), path)
