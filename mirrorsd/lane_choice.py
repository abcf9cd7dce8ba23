"""Chooses lanes where none are named, and says which models of a pair a device can run."""

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
from mirrorsd.model_pair import Dtype, ModelPair
from runtime.backends.devices import (
    DeviceStatus,
    devices,
    require_device,
    require_form,
    require_readable_cache,
    status_of,
)
from runtime.backends.lane_device import Device
from runtime.lanes.lane import LaneSpec
from runtime.models.hf_config import read_object

USUAL_DEVICES: Final = ("openvino:CPU", "cpu")
"""Lanes are those of the first of them that is there and computes with the weights: compiled graphs, or torch as it
comes."""
_RUNS: Final = {"npu": "openvino:NPU", "cpu": "openvino:CPU"}
"""Lanes of devices by what planned ones are often called; of others GPUs are meant."""


def usual_device(pair: ModelPair) -> str:
    """Return the device to use for a pair when the user names none; it may be missing, which lanes refuse later."""
    folders = [pair.target_folder, *([] if pair.drafter is None else [pair.drafter.folder])]
    names = [name for folder in folders for name in _config_of(folder).get("architectures") or ()]
    for device in USUAL_DEVICES:
        if pair.dtype in status_of(device).forms and all(map(Device.of_lane(device).knows, names)):
            return device
    return USUAL_DEVICES[-1]


def unused_devices(pair: ModelPair) -> tuple[DeviceStatus, ...]:
    """Return the devices that are there and compute with a pair's weights, but are used only where they are named."""
    there = (device for device in devices() if device.missing is None and pair.dtype in device.forms)
    return tuple(device for device in there if device.name not in USUAL_DEVICES)


def device_lanes(device: str, dtype: Dtype) -> tuple[LaneSpec, ...]:
    """Return the lanes to use of a device, without a GPU's second process, which is for lists of lanes and schedules.

    Raises `ConfigError` where it is missing or does not compute with such weights.
    """
    return tuple(spec for spec in _all_lanes(device, dtype) if "#" not in spec.name)


def profile_lanes(profile: Profile) -> tuple[LaneSpec, ...]:
    """Return the lanes that a profile was measured on; `ConfigError` where cores or a device are missing here."""
    for lane in profile.lanes:
        if ":" in lane.device and lane.device != (named := Device.of_lane(lane.name).name):
            msg = f"lane {lane.name!r} is on {lane.device} in the profile, and its name says {named}"
            raise ConfigError(msg)
    return specs_of(profile.lanes)


def chosen_lanes(device: str | None, names: str | None, pair: ModelPair) -> tuple[LaneSpec, ...]:
    """Return the lanes that a list with commas names; without one all lanes of the device, or of the default one."""
    if names is None:
        return device_lanes(device or usual_device(pair), pair.dtype)
    if device is not None:
        raise ConfigError("give a device or lanes, not both: a lane's name says its device")
    wanted = dict.fromkeys(filter(None, (name.strip() for name in names.split(","))))
    if not wanted:
        raise ConfigError("no lane is named; `mirrorsd devices` lists them")
    return tuple(_named(name, pair.dtype) for name in wanted)


def specs_of(lanes: Iterable[PlacedLane]) -> tuple[LaneSpec, ...]:
    """Return the same lanes for an engine; raises what `LaneSpec` does."""
    return tuple(LaneSpec(name=lane.name, cores=lane.cores, num_threads=lane.num_threads) for lane in lanes)


def all_lane_specs() -> tuple[LaneSpec, ...]:
    """Return the lanes of every device that is there; a schedule starts only those that it names."""
    return specs_of([lane for device in devices() if device.missing is None for lane in lanes_of(device.name)])


def require_lanes(schedule: Schedule, lanes: Iterable[LaneSpec]) -> None:
    """Refuse a schedule on other lanes than these before anything is loaded, and say what would run it."""
    names = [lane.name for lane in lanes]
    for name in filter(None, (schedule.target_lane, schedule.draft_lane)):
        if name in names:
            continue
        if ":" in name and (why := status_of(Device.of_lane(name).name).missing) is not None:
            raise ConfigError(f"lane {name!r} is not there: {why}. Lanes here: {', '.join(names)}")
        missing = f"this machine has no lane {name!r}, only {', '.join(names)}"
        if ":" in name:  # a back end is named: it is a lane of some machine
            raise ConfigError(missing)
        would_run = next((lane for kind, lane in _RUNS.items() if kind in name.lower()), "cuda:0 or openvino:GPU")
        raise ConfigError(
            f"{missing}. A device of that name would be run by {would_run}: name the lane in the schedule, or in the "
            f"platform (lanes: {{{name}: LANE}})"
        )


def require_computed(schedule: Schedule, dtype: Dtype) -> None:
    """Refuse weights that a lane's device here does not compute with, and streams where it hides the KV cache."""
    for name in filter(None, (schedule.target_lane, schedule.draft_lane)):
        device = Device.of_lane(name)
        if status_of(device.name).missing is None:
            require_form(name, device.name, dtype)
        if schedule.traits.drafts_itself:
            require_readable_cache(name, schedule.method)


def fitted_to(pair: ModelPair, given: Iterable[str]) -> tuple[ModelPair, tuple[str, ...]]:
    """Return the pair without models that the devices cannot run, and a sentence for each of those."""
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
    """Refuse a pair of which nothing drafts on these lanes, where drafting is to be compared with plain decoding."""
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
        raise ConfigError(f"there is no lane {name!r} here; those of {device} are {', '.join(specs)}")
    return specs[name]


def _config_of(folder: Path) -> dict[str, Any]:
    return read_object(folder / "config.json", holds="a model's folder holds one")
