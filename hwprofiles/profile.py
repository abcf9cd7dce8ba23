"""A profile: what was measured on one machine, and how well. Written by calibration, read by the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from decoding.errors import ProfileError
from decoding.yaml_file import StrictModel, load_yaml, save_yaml
from hwprofiles.bounds import MOST_PACE_SPREAD, Bytes, BytesPerSecond, Factor, RelativeError, Seconds
from hwprofiles.device_group import DeviceGroup
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

LanePart = Literal[
    "layer",
    "lm_head",
    "exit",
    "draft_step",
    "draft_step_features",
    "draft_start",
    "draft_streams",
    "heads",
    "streams",
    "prefill",
    "draft_prefill",
    "head_prefill",
]
"""The fields of a `LaneProfile` that hold tables."""


class Contention(StrictModel):
    """What two lanes cost each other while both work.

    Attributes:
        lanes: the lane that ran the target, then the lane that ran the draft.
        slowdown: for each lane of the pair, its latency while the other works over its latency alone.
        anchor_slowdown: the same of anchors on both lanes at once: how much lanes were in each other's way when this
            was measured. None where nobody took any.
        relative_error: half-width (90 %) of what either may be off by.
        source: where the numbers come from.
    """

    lanes: tuple[str, str]
    slowdown: tuple[Factor, Factor]
    anchor_slowdown: tuple[Factor, Factor] | None = None
    relative_error: RelativeError = 0.0
    source: str


class LaneProfile(StrictModel):
    """One lane: where it runs and what each model part costs on it.

    Parts: `layer` (one target layer), `lm_head` (all that follows the last layer of a verification), `exit` per
    exit layer, `draft_step` (a whole step of the draft, selection included: a row, or one of each of several
    branches and as many more as they have guesses), `draft_step_features` (the next rows of a text, with exit
    features), `draft_start` (the window's rows with exit features and the first row of every branch, in one step),
    `draft_streams` (the streams of one row of the draft, or of one of each branch, if it has any; their rows are
    guesses), `heads` (a whole step of a head, by the drafter's name), `streams` (what the target's streams add to a
    verification, by their name), `prefill`, `draft_prefill` and `head_prefill` (reading a whole prompt of so many
    rows: by the target, by the draft, by a head of that name). `dispatch_s` is the fixed cost of one operation:
    half of it before it starts, half after it ends. `wake_s` is what the target's first operation takes more after
    the lane has waited for another one; `draft_wake_s` what the first step of a rollout of the draft takes more
    than later ones of as many rows, since the target has read its weights meanwhile, and `head_wake_s` the same of
    heads, by the drafter's name. `resize_s` is what a step of a rollout or of finishing takes more after one of
    other rows. `branch_wake_s` is what every step of branches takes more, whatever its rows, and `start_wake_s`
    what one takes beyond that that reads the window too. `turn_s` is what a round takes more outside of lanes where
    this one drafts. `pace_spread` is how much the pace of its steps differs from round to round, next to that of a
    target's pass at the same time (standard deviation, relative). `features_s` is what a pass of the target takes
    more that replies its states, by the name of the drafter that reads them (a draft model's as the profile has
    it); `branch_error` is what steps of branches may be off by on their own (half-width, 90 %), and
    `features_error` passes that reply states. `group` is what its devices exchange where it is several.

    `device` is what computes: cores under torch, or a device as `mirrorsd devices` lists it, such as `openvino:CPU`.
    Acceptance holds for the lanes of the back end that it was recorded on.

    `devices` are those of a platform that the lane occupies, several for a tensor-parallel group; empty where the lane
    is a part of this machine.

    `anchor` is what times were compared with, and `step_anchor` what those of the draft model in runs were: a step of
    one row; None in a profile that nobody measured. `relative_error` is what all
    times of this lane may be off by together (half-width, 90 %), beyond what all lanes share.
    """

    name: str
    device: str
    devices: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    num_threads: Annotated[int, Field(ge=1)] = 1
    dispatch_s: Seconds
    wake_s: Seconds = 0.0
    draft_wake_s: Seconds = 0.0
    resize_s: Seconds = 0.0
    branch_wake_s: Seconds = 0.0
    start_wake_s: Seconds = 0.0
    turn_s: Seconds = 0.0
    pace_spread: Annotated[float, Field(ge=0, le=MOST_PACE_SPREAD, allow_inf_nan=False)] = 0.0
    branch_error: RelativeError = 0.0
    features_s: dict[str, Seconds] = Field(default={})
    features_error: dict[str, RelativeError] = Field(default={})
    head_wake_s: dict[str, Seconds] = Field(default={})
    layer: LatencyTable | None = None
    lm_head: LatencyTable | None = None
    exit: dict[int, LatencyTable] = Field(default={})
    draft_step: LatencyTable | None = None
    draft_step_features: LatencyTable | None = None
    draft_start: LatencyTable | None = None
    draft_streams: LatencyTable | None = None
    heads: dict[str, LatencyTable] = Field(default={})
    streams: dict[str, LatencyTable] = Field(default={})
    prefill: LatencyTable | None = None
    draft_prefill: LatencyTable | None = None
    head_prefill: dict[str, LatencyTable] = Field(default={})
    group: DeviceGroup | None = None
    anchor: Anchor | None = None
    step_anchor: Anchor | None = None
    relative_error: RelativeError = 0.0

    def verify_s(self, num_layers: int, rows: float, context: float) -> float:
        """Seconds of a verification, without its dispatch: all layers, and what follows the last one.

        Raises:
            ProfileError: a part was not measured on this lane.
            OutOfRangeError: the rows or the context were not.
        """
        return num_layers * self._part_s("layer", rows, context) + self._part_s("lm_head", rows, context)

    def prefix_s(self, exit_layer: int, rows: float, context: float) -> float:
        """Seconds of a verification up to an exit layer, the exit included; errors as in `verify_s`."""
        exit_s = self._seconds_of(self.exit.get(exit_layer), f"exit after layer {exit_layer}", rows, context)
        return exit_layer * self._part_s("layer", rows, context) + exit_s

    def suffix_s(self, num_layers: int, exit_layer: int, rows: float, context: float) -> float:
        """Seconds of the rest of a verification after an exit layer; errors as in `verify_s`."""
        return self.verify_s(num_layers - exit_layer, rows, context)

    def draft_s(self, rows: float, context: float, *, with_features: bool = False) -> float:
        """Seconds of one step of the draft, with exit features or without; errors as in `verify_s`."""
        return self._part_s("draft_step_features" if with_features else "draft_step", rows, context)

    def start_s(self, rows: float, context: float) -> float:
        """Seconds of the step that reads the window with its features and starts branches; errors as in `verify_s`."""
        return self._part_s("draft_start", rows, context)

    def rollout_wake_s(self, head: str | None = None) -> float:
        """What the first step of a rollout takes more than later ones: of a head of that name, or of the draft."""
        return self.draft_wake_s if head is None else self.head_wake_s.get(head, 0.0)

    def scaled(self, factors: Mapping[LanePart, float | Sequence[float]]) -> Self:
        """The same lane with all times of some parts multiplied, see `LatencyTable.scaled`."""
        return self.model_copy(update={part: _scaled(getattr(self, part), factor) for part, factor in factors.items()})

    def with_wakes_scaled(self, factor: float) -> Self:
        """The same lane with what the first steps of rollouts, and those of branches, take more multiplied."""
        heads = {name: seconds * factor for name, seconds in self.head_wake_s.items()}
        names = ("draft_wake_s", "resize_s", "branch_wake_s", "start_wake_s")
        own = {name: getattr(self, name) * factor for name in names}
        return self.model_copy(update={**own, "head_wake_s": heads})

    def with_features_scaled(self, factor: float) -> Self:
        """The same lane with what passes take more that reply their states multiplied."""
        features_s = {drafter: seconds * factor for drafter, seconds in self.features_s.items()}
        return self.model_copy(update={"features_s": features_s})

    def _part_s(self, part: LanePart, rows: float, context: float) -> float:
        return self._seconds_of(getattr(self, part), part, rows, context)

    def _seconds_of(self, table: LatencyTable | None, part: str, rows: float, context: float) -> float:
        if table is None:
            msg = f"lane {self.name!r} has no measured {part}"
            raise ProfileError(msg)
        return table.at(rows, context)


class LinkProfile(StrictModel):
    """The way between two lanes: `latency_s` + bytes / `bytes_per_s`."""

    lanes: tuple[str, str]
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
        memory_pool_bytes_per_s: bandwidth that all lanes share (max-min fair); None if it never binds.
        features_bytes_per_row: hidden states of one row that an exit message carries to a draft with features.
        calibration_s: how long measuring took.
        relative_error: what all times may be off by together (half-width, 90 %): the ratio of two schedules is free
            of it.
        is_row_invariant: whether a row's result does not depend on how many others are computed with it; None if
            that was not tested.
        samples: name of the file next to this one that holds all that was timed; None if nothing was kept.
        notes: remarks on how it was measured, for people.
    """

    format: Literal["mirrorsd-profile-3"] = "mirrorsd-profile-3"
    host: dict[str, Any]
    target: str
    drafter: str | None
    dtype: str
    num_layers: Annotated[int, Field(ge=1, le=10_000)]
    lanes: Annotated[tuple[LaneProfile, ...], Field(min_length=1)]
    links: tuple[LinkProfile, ...] = ()
    contention: tuple[Contention, ...] = ()
    memory_pool_bytes_per_s: BytesPerSecond | None = None
    features_bytes_per_row: Bytes = 0.0
    round_overhead_s: Seconds = 0.0
    calibration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    relative_error: RelativeError = 0.0
    is_row_invariant: bool | None = None
    samples: str | None = None
    notes: tuple[str, ...] = ()

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

    def features_s(self, lane: str, drafter: str | None) -> float:
        """What a pass on a lane takes more that replies its states to a drafter; None is the draft model."""
        return self.lane(lane).features_s.get(drafter or self.drafter or "", 0.0)

    def features_error(self, lane: str, drafter: str | None) -> float:
        """What such passes may be off by on their own (half-width, 90 %)."""
        return self.lane(lane).features_error.get(drafter or self.drafter or "", 0.0)

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


def _scaled(
    tables: LatencyTable | dict[Any, LatencyTable] | None, factor: float | Sequence[float]
) -> LatencyTable | dict[Any, LatencyTable] | None:
    if isinstance(tables, dict):
        return {key: table.scaled(factor) for key, table in tables.items()}
    return None if tables is None else tables.scaled(factor)
