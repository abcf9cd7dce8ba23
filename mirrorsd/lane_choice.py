"""Chooses lanes if the user names none, and checks which models of a pair a device can run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from decoding.errors import ConfigError
from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.host import lanes_of
from hwprofiles.lane_cores import PlacedLane
from hwprofiles.profile import Profile
from mirrorsd.model_pair import ModelPair
from runtime.backends.devices import (
    DeviceStatus,
    devices,
    require_device,
    require_form,
    require_readable_cache,
    status_of,
)
from runtime.backends.lane_device import Device, Dtype
from runtime.lanes.lane import LaneSpec
from runtime.models.hf_config import read_object

USUAL_DEVICES: Final = ("openvino:CPU", "cpu")
"""The default device is the first of these that is available and supports the weight format."""
_RUNS: Final = {"npu": "openvino:NPU", "cpu": "openvino:CPU"}
"""The lane to suggest for a planned device, by a part of its name; for any other name, a GPU's lane."""


def usual_device(pair: ModelPair) -> str:
    """Return the device to use for a pair if the user names none; a missing device is reported later, by its lanes."""
    folders = [pair.target_folder, *([] if pair.drafter is None else [pair.drafter.folder])]
    names = [name for folder in folders for name in _config_of(folder).get("architectures") or ()]
    for device in USUAL_DEVICES:
        if pair.dtype in status_of(device).forms and all(map(Device.of_lane(device).knows, names)):
            return device
    return USUAL_DEVICES[-1]


def unused_devices(pair: ModelPair) -> tuple[DeviceStatus, ...]:
    """Return the available devices that support a pair's weight format but are used only if they are named."""
    there = (device for device in devices() if device.missing is None and pair.dtype in device.forms)
    return tuple(device for device in there if device.name not in USUAL_DEVICES)


def device_lanes(device: str, dtype: Dtype) -> tuple[LaneSpec, ...]:
    """Return the default lanes of a device: all but a GPU's second process, which only users and schedules name.

    Raises `ConfigError` if the device is missing or does not support the weight format.
    """
    return tuple(spec for spec in _all_lanes(device, dtype) if "#" not in spec.name)


def profile_lanes(profile: Profile) -> tuple[LaneSpec, ...]:
    """Return the lanes that a profile was measured on; `ConfigError` if cores or a device are missing here."""
    for lane in profile.lanes:
        named = Device.of_lane(lane.name).name
        if ":" in lane.device and lane.device != named:
            msg = f"lane {lane.name!r} is on {lane.device} in the profile, but its name says {named}"
            raise ConfigError(msg)
    return specs_of(profile.lanes)


def chosen_lanes(device: str | None, names: str | None, pair: ModelPair) -> tuple[LaneSpec, ...]:
    """Return the lanes in a comma-separated list; without a list, the default lanes of the (default) device."""
    if names is None:
        return device_lanes(device or usual_device(pair), pair.dtype)
    if device is not None:
        raise ConfigError("give a device or lanes, not both: a lane's name says its device")
    wanted = dict.fromkeys(filter(None, (name.strip() for name in names.split(","))))
    if not wanted:
        raise ConfigError("no lane is named; `mirrorsd devices` lists them")
    return tuple(_named(name, pair.dtype) for name in wanted)


def specs_of(lanes: Iterable[PlacedLane]) -> tuple[LaneSpec, ...]:
    """Return the lanes as `LaneSpec` for an engine; raises what `LaneSpec` raises."""
    return tuple(LaneSpec(name=lane.name, cores=lane.cores, num_threads=lane.num_threads) for lane in lanes)


def all_lane_specs() -> tuple[LaneSpec, ...]:
    """Return the lanes of every available device; an engine starts only those that a schedule names."""
    return specs_of([lane for device in devices() if device.missing is None for lane in lanes_of(device.name)])


def require_lanes(schedule: Schedule, lanes: Iterable[LaneSpec]) -> None:
    """Raise `ConfigError` for a schedule with a lane that is not among `lanes`, and say what would run it."""
    names = [lane.name for lane in lanes]
    for name in filter(None, (schedule.target_lane, schedule.draft_lane)):
        if name in names:
            continue
        missing = f"this machine has no lane {name!r}, only {', '.join(names)}"
        if ":" in name:  # the name has a back end, so it is a lane and not a planned device
            why = status_of(Device.of_lane(name).name).missing
            if why is not None:
                raise ConfigError(f"lane {name!r} is not available: {why}. Lanes here: {', '.join(names)}")
            raise ConfigError(missing)
        would_run = next((lane for kind, lane in _RUNS.items() if kind in name.lower()), "cuda:0 or openvino:GPU")
        raise ConfigError(
            f"{missing}. If {name!r} is a planned device, {would_run} may run it: name that lane in the schedule, or "
            f"in the platform (lanes: {{{name}: LANE}})"
        )


def require_computed(schedule: Schedule, dtype: Dtype) -> None:
    """Raise `ConfigError` for weights that a lane's device does not support, or streams if it hides its KV cache."""
    for name in filter(None, (schedule.target_lane, schedule.draft_lane)):
        device = Device.of_lane(name)
        if status_of(device.name).missing is None:
            require_form(name, device.name, dtype)
        if schedule.traits.drafts_itself:
            require_readable_cache(name, schedule.method)


def fitted_to(pair: ModelPair, given: Iterable[str]) -> tuple[ModelPair, tuple[str, ...]]:
    """Return the pair without the models that the devices cannot run, and a sentence for each model left out."""
    refusing = [device for device in dict.fromkeys(given) if not Device.of_lane(device).has_readable_cache]
    if not refusing:
        return pair, ()
    streams = {name for name, method in pair.head_methods.items() if METHODS[method].drafts_itself}
    why = f"streams read the KV cache, which lanes on {', '.join(refusing)} do not expose."
    heads = tuple(head for head in pair.heads if head.name not in streams)
    said = [f"{name} is left out: {why}" for name in sorted(streams)]
    if pair.drafter is not None and _config_of(pair.drafter.folder).get("streams") is not None:
        said.append(f"{pair.drafter.name} drafts without its own streams: {why}")
    return replace(pair, heads=heads), tuple(said)


def require_drafter(pair: ModelPair, lanes: Iterable[LaneSpec]) -> None:
    """Raise `ConfigError` for a pair without anything that can draft on these lanes."""
    fitting, left_out = fitted_to(pair, [lane.device.name for lane in lanes])
    if fitting.drafter is None and not fitting.heads:
        wanted = "name a draft model (--drafter) or heads (--heads); prompt-lookup drafts for every target"
        raise ConfigError(" ".join((*left_out, f"Nothing drafts for {pair.target}: {wanted}")))


def _all_lanes(device: str, dtype: Dtype) -> tuple[LaneSpec, ...]:
    require_device(device)
    require_form(device, device, dtype)
    return specs_of(lanes_of(device))


def _named(name: str, dtype: Dtype) -> LaneSpec:
    device = Device.of_lane(name).name
    specs = {spec.name: spec for spec in _all_lanes(device, dtype)}
    if name not in specs:
        raise ConfigError(f"there is no lane {name!r} here; the lanes of {device} are {', '.join(specs)}")
    return specs[name]


def _config_of(folder: Path) -> dict[str, Any]:
    return read_object(folder / "config.json", holds="a model's folder holds one")
