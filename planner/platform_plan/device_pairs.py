"""Where target and draft could run on a platform: every different place once, however many equal devices there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decoding.errors import ProfileError
from hwprofiles.platform import SECOND_STREAM, Platform
from sim.derived.derived_profile import speed_on


class LanePair(NamedTuple):
    """Where a target and its draft run: on two lanes, or both on one.

    Attributes:
        target: lane of the target.
        draft: lane of the draft.
        in_turn: whether they share a device, so that they cannot work at the same time.
    """

    target: str
    draft: str
    in_turn: bool = False

    @property
    def is_pooled(self) -> bool:
        """Whether they take turns on one lane."""
        return self.target == self.draft

    @property
    def is_two_streams(self) -> bool:
        """Whether they work at the same time on one device."""
        return self.draft == f"{self.target}{SECOND_STREAM}"

    @property
    def placement(self) -> str:
        """How they share time: `pooled` (in turn) or `split`."""
        return "pooled" if self.in_turn else "split"

    def __str__(self) -> str:
        return f"both on {self.target}" if self.is_pooled else f"target on {self.target}, draft on {self.draft}"


def lane_pairs(platform: Platform, lanes: Sequence[str]) -> list[LanePair]:
    """Return every different placement on some of a platform's devices and groups, those on one lane first.

    Two devices are the same place for a target if all their numbers are, and those of all lanes beside them. Of a kind
    of device a target's draft has the nearest one that shares its memory and the nearest one that does not. A group's
    draft may also run on one of its devices, in turn with the target, and a device's on a second stream of it, where
    its sheet says what that costs.
    """
    kinds = {lane: _kind(platform, lane) for lane in lanes}
    beside = {
        target: {lane: _shares_memory(platform, target, lane) for lane in lanes if platform.are_apart(target, lane)}
        for target in lanes
    }
    places: dict[object, str] = {}
    for lane in lanes:
        neighbours = frozenset((kinds[other], shared) for other, shared in beside[lane].items())
        places.setdefault((kinds[lane], neighbours), lane)
    targets = list(places.values())
    pairs = [LanePair(lane, lane, in_turn=True) for lane in targets]
    pairs += [
        LanePair(target, platform.members(target)[0], in_turn=True) for target in targets if target in platform.groups
    ]
    pairs += [LanePair(target, f"{target}{SECOND_STREAM}") for target in targets if _has_streams(platform, target)]
    for target in targets:
        nearest: dict[object, str] = {}
        for draft in sorted(beside[target], key=lambda lane: _distance_s(platform, target, lane)):
            nearest.setdefault((kinds[draft], beside[target][draft]), draft)
        pairs += [LanePair(target, draft) for draft in beside[target] if draft in nearest.values()]
    return pairs


def usable_lanes(platform: Platform, num_prompt_tokens: int = 1) -> tuple[list[str], list[str]]:
    """Devices and groups that can read such prompts and whose speed can be told, and for the others why not."""
    lanes, reasons = [], []
    for lane in (*platform.devices, *platform.groups):
        try:
            speeds = [speed_on(platform, member) for member in platform.members(lane)]
        except ProfileError as error:
            reasons.append(f"{lane}: {error}")
            continue
        most = min((speed.max_prompt for speed in speeds if speed.max_prompt is not None), default=num_prompt_tokens)
        if most < num_prompt_tokens:
            reasons.append(f"{lane}: it reads prompts of at most {most:,} tokens, and some have {num_prompt_tokens:,}")
        else:
            lanes.append(lane)
    return lanes, reasons


def _kind(platform: Platform, lane: str) -> tuple[str, ...]:
    """Return everything that is known of a lane's devices and their memories, their names left out."""
    return tuple(
        platform.device(member).model_dump_json() + platform.pool_of(member)[1].model_dump_json(exclude={"devices"})
        for member in platform.members(lane)
    )


def _has_streams(platform: Platform, lane: str) -> bool:
    return lane in platform.devices and platform.device(lane).two_streams_slowdown is not None


def _distance_s(platform: Platform, one: str, other: str) -> float:
    """Return what a message of a few tokens takes between the first devices of two lanes."""
    return platform.transfer_s(platform.members(one)[0], platform.members(other)[0], 1e3)


def _shares_memory(platform: Platform, one: str, other: str) -> bool:
    pools = [{platform.pool_of(member)[0] for member in platform.members(lane)} for lane in (one, other)]
    return bool(pools[0] & pools[1])
