"""A calibrated machine as a platform: lanes that were timed, beside which described devices can stand.

What was timed holds for the models that were timed: of those a lane costs what its tables say. With other models it is
taken for a device that reads, computes and starts graphs as fast as it did with those, within a wider interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from costs.cost_model import Floats, LaneCost, MeasuredCost, Part, PartFacts
from decoding.errors import ProfileError, mistake
from hwprofiles.lane_profile import TARGET_PARTS, LaneProfile
from hwprofiles.platform import SECOND_STREAM, Platform
from hwprofiles.profile import Profile
from hwprofiles.quantity import CALIBRATION, Quantity
from hwprofiles.weights.formats import stored_weights
from sim.derived.assumption import Assumption
from sim.derived.roofline import RooflineCost

CARRIED: Final = (0.75, 1.35)
"""Between which shares of its speed with the models of a calibration a lane may be with others. One case is known: by
what a core reached with a model of 135M in bfloat16, 8B in int4 are predicted 20 % too slow."""
_FEW_ROWS: Final = 8
_FREE: Final = {"latency_s": 1e-9, "bytes_per_s": 1e18}
_MEMORY: Final = "memory of the host"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedLanes:
    """The lanes of a profile, for some pair of models.

    Attributes:
        profile: of the calibration.
        has_target, has_draft: whether it was made with that target, and with that draft.
    """

    profile: Profile
    has_target: bool
    has_draft: bool

    @property
    def names(self) -> frozenset[str]:
        """Of the lanes."""
        return frozenset(lane.name for lane in self.profile.lanes)

    @property
    def in_words(self) -> str | None:
        """What is taken for granted; None where all of it was measured."""
        if self.has_target and self.has_draft:
            return None
        other = {(False, False): "these models", (True, False): "this draft", (False, True): "this target"}
        low, high = (f"{100 * share:.0f} %" for share in CARRIED)
        found = other[self.has_target, self.has_draft]
        return (
            f"{_whose(self.profile)}, and not with {found}: its lanes are taken to read and compute as fast with "
            f"{found} as with those, within {low} to {high}."
        )

    def cost(self, lane: str, derived: RooflineCost) -> LaneCost:
        """What parts cost on a lane: as measured with these models, else as derived from what the lane achieves."""
        return _CarriedCost(MeasuredCost(self.profile.lane(lane)), derived, self)

    def beside(self, described: Profile, timed: Iterable[tuple[str, str]]) -> Profile:
        """A profile of lanes that are only described, with those that were timed in their places, and their ways.

        What is wrong with all times of the calibration is not wrong with those of others, which are less sure for it.
        """
        own, pairs = self.profile, {frozenset(pair) for pair in timed}
        lanes = tuple(
            own.lane(lane.name)
            if lane.name in self.names
            else lane.model_copy(update={"relative_error": hypot(lane.relative_error, own.relative_error)})
            for lane in described.lanes
        )
        links = [link for link in own.links if frozenset(link.lanes) in pairs]
        contention = [entry for entry in own.contention if frozenset(entry.lanes) in pairs]
        kept = {"host", "round_overhead_s", "relative_error", "pace_error", "schedule_error", "features_bytes_per_row"}
        kept |= {"target", "dtype"} if self.has_target else set()
        kept |= {"drafter"} if self.has_draft else set()
        return described.model_copy(
            update={field: getattr(own, field) for field in kept}
            | {
                "lanes": lanes,
                "links": (*links, *described.links),
                "contention": (*contention, *described.contention),
                "notes": (*own.notes, *filter(None, [self.in_words])),
            }
        )

    def assumptions(self, derived: RooflineCost) -> tuple[Assumption, ...]:
        """What the prices of a lane stand on: the time of a pass, or what it achieves, or both."""
        name = derived.device.name
        lane, carried = self.profile.lane(name), derived.device.assumptions
        if not self.has_target or lane.layer is None or lane.lm_head is None:
            return carried
        seconds, error = _pass_s(lane, self.profile, 1), hypot(lane.relative_error, lane.layer.relative_error)
        span = (seconds * max(0.0, 1 - error), seconds * (1 + error))
        timed = Assumption.of(f"{name}.pass_s", seconds, "measured", lane.layer.source, span=span)
        return (timed,) if self.has_draft else (timed, *carried)


class _CarriedCost:
    """A `costs.cost_model.LaneCost`: tables of what was measured with these models, a roofline of the rest."""

    def __init__(self, measured: MeasuredCost, derived: RooflineCost, lanes: CalibratedLanes) -> None:
        self._measured, self._derived, self._lanes = measured, derived, lanes

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        return (self._measured if self._was_timed(part) else self._derived).seconds(part, rows, contexts)

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        return (self._measured if self._was_timed(part) else self._derived).missing(part, rows, contexts)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`; what a lane achieves with other models is as sure as the part's own times."""
        if self._was_timed(part):
            return self._measured.facts(part)
        found = self._derived.facts(part)
        return found._replace(relative_error=hypot(found.relative_error, self._derived.device.reading_error))

    def _was_timed(self, part: Part) -> bool:
        return self._lanes.has_target if part.kind in TARGET_PARTS else self._lanes.has_draft


def calibrated_platform(profile: Profile) -> Platform:
    """The machine of a profile: a device for each lane, with what it achieved in the calibration.

    Raises:
        ProfileError: its numbers are those of no device.
    """
    lanes = {lane.name: lane for lane in profile.lanes if not lane.name.endswith(SECOND_STREAM)}
    devices = {name: _device(lane, profile) for name, lane in lanes.items()}
    on_host = [name for name, device in devices.items() if device["kind"] == "cpu"]
    data: dict[str, Any] = {
        "name": "the calibrated machine",
        "host": (on_host or list(devices))[0],
        "devices": devices,
        "links": list(_links(profile, list(lanes))),
    }
    if on_host:
        data["memory_pools"] = {_MEMORY.replace(" ", "-"): _memory(profile, devices, on_host)}
    try:
        return Platform.model_validate(data)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False)
        raise ProfileError(f"the profile describes no machine that could be planned for: {mistake(first)}") from error


def _device(lane: LaneProfile, profile: Profile) -> dict[str, Any]:
    """What a lane achieved: bytes in a pass of one row, and FLOPs in what many rows add."""
    named = next((kind for kind in ("npu", "gpu", "cuda") if kind in lane.name.lower()), "cpu")
    device: dict[str, Any] = {
        "name": "a lane of the calibrated machine",
        "kind": "gpu" if named == "cuda" else named,
        "cores": lane.cores,
    }
    if lane.dispatch_s:
        device |= {"dispatch_s": _measured(lane.dispatch_s, profile), "dispatch_of": "graph"}
    streams = profile.contention_of(lane.name, f"{lane.name}{SECOND_STREAM}")
    if streams is not None:
        device["two_streams_slowdown"] = _measured(max(1.0, *streams.slowdown), profile)
    layer, head = lane.layer, lane.lm_head
    if layer is None or head is None:
        return device
    num_bytes = profile.num_layers * layer.bytes_per_call + head.bytes_per_call
    one_s, few = _pass_s(lane, profile, 1), max(rows for rows in layer.rows if rows <= _FEW_ROWS)
    if not num_bytes or not one_s:
        return device
    device["memory_cap_bytes_per_s"] = _measured(num_bytes / one_s, profile, CARRIED)
    if few > 1:
        growth = (_pass_s(lane, profile, few) / one_s - 1) / (few - 1)
        device["growth_per_row"] = _measured(min(4.0, max(1e-3, growth)), profile, CARRIED)
    fewer, most = ([0, *layer.rows])[-2:]
    added_s = _pass_s(lane, profile, most) - (_pass_s(lane, profile, fewer) if fewer else 0.0)
    weight_bytes = 4.0 if profile.dtype == "float32" else stored_weights(profile.dtype).bits / 8
    flops = 2 * num_bytes / weight_bytes * (most - fewer) / max(added_s, one_s / 100)
    device["bf16_flops"] = _measured(flops, profile, CARRIED)
    return device


def _pass_s(lane: LaneProfile, profile: Profile, rows: int) -> float:
    """Seconds of a verification of so many rows in the middle of the contexts."""
    assert lane.layer is not None, "a lane without a target"
    return lane.verify_s(profile.num_layers, rows, float(np.mean(lane.layer.contexts)))


def _memory(profile: Profile, devices: Mapping[str, Mapping[str, Any]], on_host: list[str]) -> dict[str, Any]:
    """The memory of the CPU's lanes: at least what two of them read at once."""
    caps = {name: devices[name]["memory_cap_bytes_per_s"].value for name in on_host if _has_cap(devices[name])}
    together = [
        sum(caps[lane] / slowdown for lane, slowdown in zip(entry.lanes, entry.slowdown, strict=True))
        for entry in profile.contention
        if caps.keys() >= set(entry.lanes)
    ]
    memory: dict[str, Any] = {"devices": on_host}
    memory["bytes_per_s"] = _measured(max([*caps.values(), *together], default=1e11), profile)
    if isinstance(size := profile.host.get("memory_gb"), int | float) and size > 0:
        memory["memory_bytes"] = _measured(size * 1e9, profile)
    return memory


def _has_cap(device: Mapping[str, Any]) -> bool:
    return "memory_cap_bytes_per_s" in device


def _links(profile: Profile, lanes: list[str]) -> Iterable[dict[str, Any]]:
    """Every measured way between two lanes; one that nobody measured is free, as profiles have it."""
    for one in lanes:
        for other in lanes:
            if one == other:
                continue
            link = profile.link(one, other)
            found = _FREE if link is None else {"latency_s": max(1e-9, link.latency_s), "bytes_per_s": link.bytes_per_s}
            numbers = {field: _measured(value, profile) for field, value in found.items()}
            yield {"between": [one, other], "one_way": True, "name": "as calibrated", **numbers}


def _measured(value: float, profile: Profile, shares: tuple[float, float] | None = None) -> Quantity:
    """A number of the calibration, between such shares of it."""
    span = None if shares is None else (value * shares[0], value * shares[1])
    return Quantity(value=value, span=span, status="measured", by=CALIBRATION, source=_whose(profile))


def _whose(profile: Profile) -> str:
    return f"The machine was calibrated with {profile.target} and {profile.drafter or 'no draft'} in {profile.dtype}"
