"""A measured lane on a device that is not here: as calibrated, times what data sheets say both devices differ by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from decoding.errors import ModelFormatError, ProfileError
from hwprofiles.model_shape import WeightFormat, model_shape
from hwprofiles.platform import load_platform
from hwprofiles.profile import LaneProfile, Profile
from mirrorsd.model_pair import find_pair
from runtime.models.hf_config import read_object
from sim.derived.carried_profile import carried_lane
from sim.derived.derived_profile import speed_on
from sim.derived.roofline import RooflineCost, StoredModel

if TYPE_CHECKING:
    from mirrorsd.model_pair import ModelPair

_FORMATS: Final[dict[str, WeightFormat]] = {"bfloat16": "bf16", "int8": "int8", "int4": "int4"}
_MOST_READ: Final = 1.25
"""Of what a device reads by its sheet, that a lane on it may: sheets are of other days, and weights stay in caches."""


def carry(profile: Profile, lane: str, *, measured_on: str, to: str) -> Profile:
    """A profile of one lane as it would be on another device; a record made for the lane holds for it too.

    Both devices are named by platform and device, as `cpu-2core.cpu0` and `lunar-lake.cpu`. It is as if the same
    software ran on the other device: what is slower here than it could be is as much slower there. Heads, streams and
    windows with exit features are left out, since no roofline knows them, and one lane has no links. Errors are those
    of the calibration, of both sheets and of the roofline.

    Args:
        profile: a calibrated one.
        lane: which of its lanes, on one device.
        measured_on: the device that it was measured on.
        to: the other one.

    Raises:
        ProfileError: a name is unknown, the lane reads faster than the first device can, or a part does not fit the
            other device.
        ModelError: a model of the profile is not to be had.
    """
    if profile.dtype not in _FORMATS:
        raise ProfileError(f"weights in {profile.dtype} are carried nowhere: known are {', '.join(_FORMATS)}")
    measured = profile.lane(lane)
    pair = find_pair(profile.target, drafter=profile.drafter or "none", heads=())
    weights = _FORMATS[profile.dtype]
    target = StoredModel(shape=model_shape(pair.target_folder), weights=weights)
    models = target, _draft_of(pair, target)
    here, there = (_roofline(name, *models, tuple(measured.exit)) for name in (measured_on, to))
    _require_plausible(measured, here, target)
    carried = carried_lane(measured, here, there, name=to).model_copy(update={"device": measured.device})
    note = f"Lane {lane}, measured on {measured_on}, carried to {to} by data sheets: nothing was timed there."
    return Profile(
        host={"carried_to": to, "measured_on": profile.host},
        target=profile.target,
        drafter=profile.drafter,
        dtype=profile.dtype,
        num_layers=profile.num_layers,
        lanes=(carried,),
        features_bytes_per_row=profile.features_bytes_per_row,
        round_overhead_s=profile.round_overhead_s,
        relative_error=profile.relative_error,
        notes=(*profile.notes, note),
    )


def _roofline(name: str, target: StoredModel, draft: StoredModel | None, exits: tuple[int, ...]) -> RooflineCost:
    platform, _, device = name.rpartition(".")
    if not platform:
        raise ProfileError(f"{name!r} names no device: a platform and a device do, such as lunar-lake.cpu")
    speed = replace(speed_on(load_platform(platform), device), name=name)
    return RooflineCost(device=speed, target=target, draft=draft, exits=exits)


def _draft_of(pair: ModelPair, target: StoredModel) -> StoredModel | None:
    """The shape of the draft: a decoder of its own, or some of the target's layers with a reduced output head."""
    if pair.drafter is None:
        return None
    config = read_object(pair.drafter.folder / "config.json", holds="a drafter's folder holds one")
    if "source_layers" not in config:
        return StoredModel(shape=model_shape(pair.drafter.folder), weights=target.weights)
    try:
        num_layers, kept = len(config["source_layers"]), int(config["draft_vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(f"{pair.drafter.folder}: its config.json is not that of a draft ({error})") from error
    shape = target.shape.model_copy(update={"num_layers": num_layers, "name": pair.drafter.name})
    return StoredModel(shape=shape, weights=target.weights, kept_vocabulary=kept)


def _require_plausible(lane: LaneProfile, here: RooflineCost, target: StoredModel) -> None:
    """A lane that reads faster than a device can was not measured on it."""
    if lane.layer is None:
        raise ProfileError(f"lane {lane.name!r} has no target: there is nothing to carry")
    rate = target.layer_bytes(1, lane.layer.contexts[0]) / lane.layer.at(1, lane.layer.contexts[0])
    if rate > _MOST_READ * here.device.bytes_per_s:
        msg = (
            f"lane {lane.name!r} reads {rate / 1e9:.3g} GB/s, and {here.device.name} by its sheet at most "
            f"{here.device.bytes_per_s / 1e9:.3g}: it was measured on another device, or with other software"
        )
        raise ProfileError(msg)
