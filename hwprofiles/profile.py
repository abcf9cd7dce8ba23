"""A profile: what was measured on one machine, and how well. Written by calibration, read by the simulator.

Latencies are tables over (rows, context). Between grid points they are interpolated linearly; outside the grid
there is an error, never a silent extrapolation.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from decoding.errors import OutOfRangeError, ProfileError
from decoding.yaml_file import load_yaml, save_yaml

Seconds = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LatencyTable(_Strict):
    """Median seconds of one model part over a grid, [rows][contexts], with the spread of the repeats.

    Attributes:
        rows: grid of row counts, ascending.
        contexts: grid of context lengths (tokens in the cache), ascending; one entry where the context does
            not matter, and then any context is in range.
        seconds: medians.
        relative_error: half-width of the central 50 % of the repeats, over the median, pooled over the grid.
        bytes_per_call: memory traffic of one call at one row (weights and cache), for contention.
        source: where the numbers come from.
    """

    rows: Annotated[tuple[int, ...], Field(min_length=1)]
    contexts: Annotated[tuple[int, ...], Field(min_length=1)]
    seconds: tuple[tuple[Seconds, ...], ...]
    relative_error: Annotated[float, Field(ge=0)] = 0.0
    bytes_per_call: Annotated[float, Field(ge=0)] = 0.0
    source: str

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        for name, grid in (("rows", self.rows), ("contexts", self.contexts)):
            if list(grid) != sorted(set(grid)):
                msg = f"{name} {list(grid)} must be ascending without repeats"
                raise ValueError(msg)
        if [len(line) for line in self.seconds] != [len(self.contexts)] * len(self.rows):
            msg = f"seconds must be {len(self.rows)} lists (rows) of {len(self.contexts)} numbers (contexts)"
            raise ValueError(msg)
        return self

    @cached_property
    def _grid(self) -> NDArray[np.float64]:
        return np.array(self.seconds)

    def at(self, rows: int, context: float) -> float:
        """Seconds for `rows` rows at `context` cached tokens, bilinear.

        Raises:
            OutOfRangeError: outside the measured grid.
        """
        line, row_share = _place(self.rows, rows, "rows", self.source)
        if len(self.contexts) == 1:
            column = self._grid[:, 0]
        else:
            at, share = _place(self.contexts, context, "context", self.source)
            last = min(at + 1, len(self.contexts) - 1)
            column = self._grid[:, at] * (1 - share) + self._grid[:, last] * share
        above = min(line + 1, len(self.rows) - 1)
        return float(column[line] * (1 - row_share) + column[above] * row_share)


class Contention(_Strict):
    """What two lanes cost each other while both work.

    Attributes:
        lanes: the lane that ran the target, then the lane that ran the draft.
        slowdown: for each lane of the pair, its latency beside the other over its latency alone (>= 1 up to
            noise; values below one are kept as measured).
        relative_error: spread of the repeats.
        source: where the numbers come from.
    """

    lanes: tuple[str, str]
    slowdown: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]
    relative_error: Annotated[float, Field(ge=0)] = 0.0
    source: str


class LaneProfile(_Strict):
    """One lane: where it runs and what each model part costs on it.

    Parts: `layer` (one target layer), `lm_head` (all that follows the last layer of a verification), `exit` per
    exit layer, `draft_step` (a whole step of the draft, selection included), `draft_step_features` (with exit
    features), `draft_streams` (the streams of one row of the draft, if it has any; their rows are guesses), `heads` (a
    whole step of a head, by the drafter's name), `streams` (what the target's streams add to a verification, by their
    name). `dispatch_s` is the fixed cost of one operation: half of it before it starts, half after it
    ends.
    """

    name: str
    device: str
    cores: tuple[int, ...] = ()
    num_threads: Annotated[int, Field(ge=1)] = 1
    dispatch_s: Seconds
    layer: LatencyTable | None = None
    lm_head: LatencyTable | None = None
    exit: dict[int, LatencyTable] = {}
    draft_step: LatencyTable | None = None
    draft_step_features: LatencyTable | None = None
    draft_streams: LatencyTable | None = None
    heads: dict[str, LatencyTable] = {}
    streams: dict[str, LatencyTable] = {}
    memory_bytes: Annotated[float, Field(ge=0)] | None = None
    power_w: Annotated[float, Field(ge=0)] | None = None
    price_per_hour: Annotated[float, Field(ge=0)] | None = None


class LinkProfile(_Strict):
    """The way between two lanes: `latency_s` + bytes / `bytes_per_s`."""

    lanes: tuple[str, str]
    latency_s: Seconds
    bytes_per_s: Annotated[float, Field(gt=0)]
    source: str


class Profile(_Strict):
    """Everything the simulator knows about one machine and one model pair.

    Attributes:
        round_overhead_s: the driver's own time per round, between the target's reply and the next operation.
        memory_pool_bytes_per_s: bandwidth that all lanes share (max-min fair); None if it never binds.
        features_bytes_per_row: hidden states of one row that an exit message carries to a draft with features.
        calibration_s: how long measuring took.
        relative_error: what a predicted time per token may be off by, from held-back checks.
        notes: remarks on how it was measured, for people.
    """

    format: Literal["mirrorsd-profile-2"] = "mirrorsd-profile-2"
    host: dict[str, Any]
    target: str
    drafter: str | None
    dtype: str
    num_layers: Annotated[int, Field(ge=1)]
    lanes: Annotated[tuple[LaneProfile, ...], Field(min_length=1)]
    links: tuple[LinkProfile, ...] = ()
    contention: tuple[Contention, ...] = ()
    memory_pool_bytes_per_s: Annotated[float, Field(gt=0)] | None = None
    features_bytes_per_row: Annotated[float, Field(ge=0)] = 0.0
    round_overhead_s: Seconds = 0.0
    calibration_s: Seconds = 0.0
    relative_error: Annotated[float, Field(ge=0)] = 0.0
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

    def slowdown(self, target_lane: str, draft_lane: str) -> tuple[float, float]:
        """Latency of target and draft beside each other over their latency alone; (1, 1) for an unknown pair.

        If the pair was measured only the other way round, each lane keeps its own slowdown.
        """
        entries = {entry.lanes: entry.slowdown for entry in self.contention}
        if (target_lane, draft_lane) in entries:
            return entries[target_lane, draft_lane]
        draft, target = entries.get((draft_lane, target_lane), (1.0, 1.0))
        return target, draft


def load_profile(path: Path) -> Profile:
    """Read a profile YAML.

    Raises:
        ConfigError: the file is missing or wrong; names file, line and value.
    """
    return load_yaml(path, Profile)


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile YAML atomically, defaults left out."""
    save_yaml({"format": profile.format} | profile.model_dump(mode="json", exclude_defaults=True), path)


def _place(grid: tuple[int, ...], value: float, name: str, source: str) -> tuple[int, float]:
    """(index of the grid point at or below `value`, share of the way to the next)."""
    if not grid[0] <= value <= grid[-1]:
        msg = f"{name} {value:g} is outside the measured {grid[0]}..{grid[-1]} ({source}); calibrate a wider grid"
        raise OutOfRangeError(msg)
    index = bisect_right(grid, value) - 1
    if index == len(grid) - 1:
        return index, 0.0
    return index, (value - grid[index]) / (grid[index + 1] - grid[index])
