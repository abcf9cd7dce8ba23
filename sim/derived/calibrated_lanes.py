"""A calibrated machine as a platform: measured lanes, possibly beside devices that are only described.

With the calibration's models a lane's costs are its tables. With other models the lane counts as a device whose
bandwidth, FLOP/s and dispatch were measured with the calibration's models, with a wider interval.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import hypot
from typing import Any, Final

from pydantic import ValidationError

from costs.cost_model import Floats, LaneCost, MeasuredCost, Own, Part, PartFacts, Shared
from costs.prices import Prices
from decoding.errors import ProfileError, mistake
from hwprofiles.curves.names import engine_of
from hwprofiles.lane_profile import TARGET_PARTS, LaneProfile
from hwprofiles.machines.device_names import find_device
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform import SECOND_STREAM, Platform
from hwprofiles.profile import Profile
from hwprofiles.quantity import CALIBRATION, Quantity
from hwprofiles.weights.formats import stored_weights
from sim.derived.assumption import Assumption
from sim.derived.roofline import RooflineCost
from sim.error_shares import interval

CARRIED: Final = (0.75, 1.35)
"""Interval of a lane's speed with other models, relative to that with the calibration's models. One case is known:
from a core's speed with a 135M model in bfloat16, an 8B model in int4 is predicted 20 % too slow."""
_FEW_ROWS: Final = 8
_FREE: Final = {"latency_s": 1e-9, "bytes_per_s": 1e18}


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedLanes:
    """The lanes of a calibration, and whether it was made with the target and the draft of the plan.

    `is_lookup`: the drafter is prompt lookup, which takes no time on any lane.
    """

    profile: Profile
    has_target: bool
    has_draft: bool
    is_lookup: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Names of the lanes."""
        return frozenset(lane.name for lane in self.profile.lanes)

    @property
    def in_words(self) -> str | None:
        """The assumption made about lanes with other models; None if both models were measured."""
        has_draft = self.has_draft or self.is_lookup
        if self.has_target and has_draft:
            return None
        other = {(False, False): "these models", (True, False): "this draft", (False, True): "this target"}
        low, high = (f"{100 * share:.0f} %" for share in CARRIED)
        found = other[self.has_target, has_draft]
        return (
            f"{_whose(self.profile)}, and not with {found}: its lanes are assumed to read and compute as fast with "
            f"{found} as with those, within {low} to {high}."
        )

    def cost(self, lane: str, derived: RooflineCost) -> LaneCost:
        """Return the costs of a lane: measured for the calibration's models, derived for others."""
        return _CarriedCost(MeasuredCost(self.profile.lane(lane)), derived, self)

    def beside(self, described: Profile, timed: Iterable[tuple[str, str]]) -> Profile:
        """Return `described` with the measured lanes, and the measured pairs `timed`, in place of derived ones.

        The calibration's common error does not cover derived lanes, so their own errors are increased by it.
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
        kept |= {"drafter", "draft_dtype"} if self.has_draft else set()
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
        """Return the assumptions behind a lane's costs: the measured time of a pass, the derived speed, or both."""
        name = derived.device.name
        lane, carried = self.profile.lane(name), derived.device.assumptions
        if not self.has_target or lane.layer is None or lane.lm_head is None:
            return carried
        seconds, error = _pass_s(lane, self.profile, 1), hypot(lane.relative_error, lane.layer.relative_error)
        span = interval(seconds, error)
        timed = Assumption.of(f"{name}.pass_s", seconds, "measured", lane.layer.source, span=span)
        return (timed,) if self.has_draft else (timed, *carried)


class _CarriedCost:
    """A `costs.cost_model.LaneCost`: tables for the calibration's models, a roofline for others."""

    def __init__(self, measured: MeasuredCost, derived: RooflineCost, lanes: CalibratedLanes) -> None:
        self._measured, self._derived, self._lanes = measured, derived, lanes

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        return self._of(part).seconds(part, rows, contexts)

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        return self._of(part).missing(part, rows, contexts)

    def shared(self, part: Part, rows: float) -> Shared:
        """See `LaneCost`."""
        return self._of(part).shared(part, rows)

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """See `LaneCost`."""
        return self._of(part).own(part, rows, contexts)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`; a derived part also has the error of the lane's bandwidth."""
        cost = self._of(part)
        found = cost.facts(part)
        if cost is self._measured:
            return found
        return found._replace(relative_error=hypot(found.relative_error, self._derived.device.reading_error))

    def _of(self, part: Part) -> LaneCost:
        was_timed = self._lanes.has_target if part.kind in TARGET_PARTS else self._lanes.has_draft
        return self._measured if was_timed else self._derived


def calibrated_platform(profile: Profile) -> Platform:
    """Return a platform with a device for each lane, with the speed that it reached in the calibration.

    Layer splits and second streams get no device: they consist of other lanes.

    Raises:
        ProfileError: a number is outside the plausible range of a device.
    """
    whole = (lane for lane in profile.lanes if not lane.name.endswith(SECOND_STREAM))
    lanes = {lane.name: lane for lane in whole if LayerSplit.of(lane.name) is None}
    devices = {name: _device(lane, profile) for name, lane in lanes.items()}
    on_host = [name for name, device in devices.items() if device["kind"] == "cpu"]
    data: dict[str, Any] = {
        "name": "the calibrated machine",
        "host": (on_host or list(devices))[0],
        "devices": devices,
        "links": [_link(profile, *pair) for pair in permutations(lanes, 2)],
        # `mirrorsd run` cannot use the lanes of profiles that were imported from an engine
        "lanes": {} if "engine" in profile.host else {name: name for name in lanes},
    }
    if on_host:
        data["memory_pools"] = {"memory-of-the-host": _memory(profile, {name: devices[name] for name in on_host})}
    try:
        return Platform.model_validate(data)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False)
        raise ProfileError(f"the profile describes no machine that could be planned for: {mistake(first)}") from error


def _device(lane: LaneProfile, profile: Profile) -> dict[str, Any]:
    """Return a lane as a device: bandwidth from a pass over one row, FLOP/s from the time that further rows add."""
    device: dict[str, Any] = {"name": "a lane of the calibrated machine", "kind": lane.kind, "cores": lane.cores}
    if engine_of(engine := str(profile.host.get("engine", ""))) is not None:
        device["engine"] = engine
    if lane.dispatch_s:
        device |= {"dispatch_s": _measured(lane.dispatch_s, profile), "dispatch_of": "graph"}
    streams = profile.contention_of(lane.name, f"{lane.name}{SECOND_STREAM}")
    if streams is not None:
        device["two_streams_slowdown"] = _measured(max(1.0, *streams.slowdown), profile)
    if lane.kind == "gpu" and (memory := _memory_of(lane.device)) is not None:
        device["memory_bytes"] = memory
    layer, head = lane.layer, lane.lm_head
    if layer is None or head is None:
        return device
    num_bytes = profile.num_layers * layer.bytes_per_call + head.bytes_per_call
    one_s, few = _pass_s(lane, profile, 1), max(rows for rows in layer.rows if rows <= _FEW_ROWS)
    if not num_bytes or not one_s:
        return device
    device["memory_cap_bytes_per_s"] = _measured(num_bytes / one_s, profile, CARRIED)
    device["memory_efficiency"] = _measured(1.0, profile)  # of the measured rate; set so that curves do not replace it
    if lane.kind != "cpu":
        device["memory_bytes_per_s"] = _measured(num_bytes / one_s, profile)
    if few > 1:
        growth = (_pass_s(lane, profile, few) / one_s - 1) / (few - 1)
        device["growth_per_row"] = _measured(min(4.0, max(1e-3, growth)), profile, CARRIED)
    fewer, most = ([0, *layer.rows])[-2:]
    added_s = _pass_s(lane, profile, most) - (_pass_s(lane, profile, fewer) if fewer else 0.0)
    weight_bytes = 4.0 if profile.dtype == "float32" else stored_weights(profile.dtype).bits / 8
    flops = 2 * num_bytes / weight_bytes * (most - fewer) / max(added_s, one_s / 100)
    device["bf16_flops"] = _measured(flops, profile, CARRIED)
    return device


def _memory_of(label: str) -> Quantity | None:
    """Return the total memory of all cards that a label lists; None unless it is known for each."""
    sizes: list[Quantity] = []
    total = 0.0
    for one in label.split(", "):
        card = find_device(one)
        if card is None or (size := card.own_sheet.memory_bytes) is None:
            return None
        sizes.append(size)
        total += card.num_devices * size.value
    return sizes[0].model_copy(update={"value": total}) if total else None


def _pass_s(lane: LaneProfile, profile: Profile, rows: int) -> float:
    assert lane.layer is not None, "a lane without a target"
    return Prices(profile).pass_s(lane.name, rows, float(lane.layer.contexts[0]))  # what a longer cache adds is apart


def _memory(profile: Profile, devices: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the memory pool of the CPU's lanes: as fast as the fastest lane, or as two lanes at once."""
    field = "memory_cap_bytes_per_s"
    caps = {name: device[field].value for name, device in devices.items() if field in device}
    together = [
        sum(caps[lane] / slowdown for lane, slowdown in zip(entry.lanes, entry.slowdown, strict=True))
        for entry in profile.contention
        if caps.keys() >= set(entry.lanes)
    ]
    rate = max([*caps.values(), *together], default=1e11)
    memory: dict[str, Any] = {"devices": list(devices), "bytes_per_s": _measured(rate, profile)}
    if isinstance(size := profile.host.get("memory_gb"), int | float) and size > 0:
        memory["memory_bytes"] = _measured(size * 1e9, profile)
    return memory


def _link(profile: Profile, one: str, other: str) -> dict[str, Any]:
    """Return the link from a lane to another; a link that was not measured takes no time, as in profiles."""
    link = profile.link(one, other)
    found = _FREE if link is None else {"latency_s": max(1e-9, link.latency_s), "bytes_per_s": link.bytes_per_s}
    numbers = {field: _measured(value, profile) for field, value in found.items()}
    return {"between": [one, other], "one_way": True, "name": "as calibrated", **numbers}


def _measured(value: float, profile: Profile, shares: tuple[float, float] | None = None) -> Quantity:
    """Return a number of the calibration; its span is `value` times each of `shares`."""
    span = None if shares is None else (value * shares[0], value * shares[1])
    return Quantity(value=value, span=span, status="measured", by=CALIBRATION, source=_whose(profile))


def _whose(profile: Profile) -> str:
    draft = profile.drafter or "no draft"
    apart = profile.draft_dtype not in (None, profile.dtype)
    models = f"{profile.target} in {profile.dtype} and {draft} in {profile.draft_dtype}"
    return f"The machine was calibrated with {models if apart else f'{profile.target} and {draft} in {profile.dtype}'}"
