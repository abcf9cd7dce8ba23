"""A profile: the times of one machine for one model pair, with their errors. Calibration writes it, `sim` reads it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from decoding.errors import ProfileError
from decoding.validation import Many, Pair
from decoding.yaml_file import StrictModel, load_yaml, save_yaml
from hwprofiles.bounds import Bytes, BytesPerSecond, Factor, RelativeError, Seconds
from hwprofiles.lane_cores import split_pairs, whole_lanes
from hwprofiles.lane_profile import LaneProfile

OfTwoLanes = TypeVar("OfTwoLanes", "Contention", "LinkProfile")
BYTES_PER_CANDIDATE = 8
"""Size of a candidate token in a message: a 32-bit id and a 32-bit log-probability."""


class Contention(StrictModel):
    """How much two lanes slow each other down while both work.

    Attributes:
        lanes: the target's lane, then the draft's.
        slowdown: for each lane, its latency while the other lane works over its latency alone.
        anchor_slowdown: the slowdown of the anchors on both lanes, measured together with `slowdown`; None if not
            measured.
        pool_bytes_per_s: bandwidth of a memory that both lanes read: beyond `slowdown`, each operation gets its
            max-min fair share of it; None if this bandwidth is never the limit.
        relative_error: half-width (90 %) of the error of each slowdown.
    """

    lanes: Pair[str]
    slowdown: Pair[Factor]
    anchor_slowdown: Pair[Factor] | None = None
    pool_bytes_per_s: BytesPerSecond | None = None
    relative_error: RelativeError = 0.0
    source: str


class LinkProfile(StrictModel):
    """A link between two lanes: a message takes `latency_s` + bytes / `bytes_per_s`."""

    lanes: Pair[str]
    latency_s: Seconds
    bytes_per_s: BytesPerSecond
    source: str


class Profile(StrictModel):
    """Everything that the simulator knows about one machine and one model pair.

    Errors are relative half-widths (90 %).

    Attributes:
        dtype, draft_dtype: weight formats of target and draft; `draft_dtype` None: the same as the target's.
        round_overhead_s: the driver's time per round, between the target's reply and the next operation.
        memory_pool_bytes_per_s: `Contention.pool_bytes_per_s` of all pairs of lanes that do not give one.
        features_bytes_per_row: bytes of hidden states per row that an exit message carries to a draft with features.
        calibration_s: how long the calibration took.
        relative_error: error common to all times; it cancels in the ratio of two schedules.
        pace_error: change of the machine's speed between the calibration and runs; it cancels likewise.
        schedule_error: further error, common to one schedule's times; a ratio of two schedules has it twice.
        is_row_invariant: whether a row's result is the same whatever rows share its pass; None if not tested.
        samples: name of the file beside the profile that holds all timings; None if they were not kept.
        notes: remarks for people on how the profile was measured.
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
        """Return the lane of that name; raises `ProfileError`, which lists the names, if there is none."""
        for lane in self.lanes:
            if lane.name == name:
                return lane
        names = ", ".join(lane.name for lane in self.lanes)
        raise ProfileError(f"the profile has no lane {name!r}; it has {names}")

    def at_paces(self, paces: Mapping[str, float]) -> Self:
        """Return a copy for a machine whose lanes take `paces` times as long (1 if not given); links are the same."""
        return self.model_copy(update={"lanes": tuple(lane.at_pace(paces.get(lane.name, 1.0)) for lane in self.lanes)})

    def split_pairs(self) -> list[tuple[str, str]]:
        """Return all ordered pairs of lanes that share no core and no device."""
        devices = {lane.name: set(lane.devices) for lane in self.lanes}
        return [pair for pair in split_pairs(self.lanes) if not devices[pair[0]] & devices[pair[1]]]

    def take_turns(self, one: str, other: str) -> bool:
        """Return whether two lanes cannot work at once: they are the same, or a group and one of its devices.

        Two streams of one device do work at once.
        """
        devices = [{*self.lane(name).devices} for name in (one, other)]
        return one == other or (devices[0] != devices[1] and not devices[0].isdisjoint(devices[1]))

    def whole_lanes(self) -> list[str]:
        """Return the names of the lanes whose cores are not a proper part of another lane's cores."""
        return whole_lanes(self.lanes)

    def link(self, target_lane: str, draft_lane: str) -> LinkProfile | None:
        """Return the link between two lanes, else that of the opposite direction, else None."""
        return _either_way(self.links, target_lane, draft_lane)

    def contention_of(self, target_lane: str, draft_lane: str) -> Contention | None:
        """Return the contention of two lanes, else that with their roles swapped, else None."""
        return _either_way(self.contention, target_lane, draft_lane)

    def slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float]:
        """Return the slowdowns (target's, draft's) while both work; (1, 1) for an unknown pair."""
        entry = self.contention_of(target_lane, draft_lane)
        if entry is None:
            return 1.0, 1.0
        return entry.slowdown if entry.lanes[0] == target_lane else entry.slowdown[::-1]

    def anchor_slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float] | None:
        """Return the anchors' slowdowns (target's lane, draft's lane) while both work; None if not measured."""
        entry = self.contention_of(target_lane, draft_lane)
        if entry is None or entry.anchor_slowdown is None:
            return None
        return entry.anchor_slowdown if entry.lanes[0] == target_lane else entry.anchor_slowdown[::-1]

    def pool_bytes_per_s(self, target_lane: str, draft_lane: str) -> float | None:
        """Return the bandwidth of the memory that two lanes share; None if it is never the limit."""
        entry = self.contention_of(target_lane, draft_lane)
        return (entry and entry.pool_bytes_per_s) or self.memory_pool_bytes_per_s

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Limit `repr` to a few fields: the tables would fill pages."""
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
    """Return the profile in a YAML file; raises `ConfigError` (file, line, value) if it is missing or wrong."""
    return load_yaml(path, Profile)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as YAML, atomically and without defaults; an end mark lets readers refuse a truncated file."""
    data = {"format": profile.format} | profile.model_dump(mode="json", exclude_defaults=True)
    save_yaml(data, path, is_marked=True)
