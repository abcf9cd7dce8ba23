"""The pairs of lanes of a platform on which target and draft could run; one of several equal devices stands for all."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from decoding.errors import ProfileError
from decoding.schedule import Schedule
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform import SECOND_STREAM, Platform
from planner.first_of_each import first_of_each
from sim.derived.assumption import Assumption
from sim.derived.derived_profile import DerivedProfile, speed_on
from sim.derived.roofline import RooflineCost

USABLE: Final = Assumption.shipped("memory.usable_share")
USABLE_OF_A_CARD: Final = Assumption.shipped("memory.usable_share/card")
_MESSAGE_BYTES: Final = 1e3
"""Size of a message of a few tokens, by whose transfer time the nearest device is found."""


class LanePair(NamedTuple):
    """The lanes of a target and its draft; `in_turn` where they share a device and cannot work at the same time."""

    target: str
    draft: str
    in_turn: bool = False

    @classmethod
    def alone(cls, lane: str) -> "LanePair":
        """Return the pair of two models that take turns on one lane, or of plain decoding there."""
        return cls(lane, lane, in_turn=True)

    @classmethod
    def of(cls, schedule: Schedule, platform: Platform) -> "LanePair":
        """Return the pair on which a schedule runs."""
        target, draft = schedule.target_lane, schedule.draft_lane
        return cls(target, draft or target, in_turn=draft is None or not platform.are_apart(target, draft))

    @property
    def is_pooled(self) -> bool:
        """Whether both models take turns on one lane."""
        return self.target == self.draft

    @property
    def is_two_streams(self) -> bool:
        """Whether both models work at the same time on one device."""
        return self.draft == f"{self.target}{SECOND_STREAM}"

    @property
    def placement(self) -> str:
        """How the models share time: `pooled` (in turn) or `split` (at once)."""
        return "pooled" if self.in_turn else "split"

    def drafters(self, platform: Platform) -> tuple[str, ...]:
        """Return the devices that draft; on a lane of a layer split, the card that has the target's `lm_head`."""
        split = LayerSplit.of(self.draft)
        return platform.members(self.draft) if split is None else (split.last,)

    def __str__(self) -> str:
        return f"both on {self.target}" if self.is_pooled else f"target on {self.target}, draft on {self.draft}"


def lane_pairs(platform: Platform, lanes: Sequence[str]) -> list[LanePair]:
    """Return all placements on `lanes` that differ in more than names, those on one lane first.

    Two target lanes are equal if all their numbers are the same, and those of their neighbours. Of several equal
    devices for the draft, the nearest that shares the target's memory is kept, and the nearest that does not. With a
    target on a group, the draft may also take turns with it on the group's first device. With a target on a single
    device, the draft may also run on a second stream of it, if the sheet has the slowdown of two streams.
    """
    kinds = {lane: _kind(platform, lane) for lane in lanes}
    beside = {
        target: {lane: _shares_memory(platform, target, lane) for lane in lanes if platform.are_apart(target, lane)}
        for target in lanes
    }
    neighbours = {lane: frozenset((kinds[other], shared) for other, shared in beside[lane].items()) for lane in lanes}
    targets = first_of_each(lanes, lambda lane: (kinds[lane], neighbours[lane]))
    pairs = [LanePair.alone(lane) for lane in targets]
    pairs += [LanePair(one, platform.members(one)[0], in_turn=True) for one in targets if one in platform.groups]
    pairs += [
        LanePair(one, f"{one}{SECOND_STREAM}")
        for one in targets
        if one in platform.devices and platform.device(one).two_streams_slowdown is not None
    ]
    for target in targets:

        def message_s(lane: str, first: str = platform.members(target)[0]) -> float:
            return platform.transfer_s(first, platform.members(lane)[0], _MESSAGE_BYTES)

        nearest: dict[object, str] = {}
        for draft in sorted(beside[target], key=message_s):
            nearest.setdefault((kinds[draft], beside[target][draft]), draft)
        pairs += [LanePair(target, draft) for draft in beside[target] if draft in nearest.values()]
    return pairs


class LeftOut(NamedTuple):
    """What was not predicted, and why."""

    place: str
    why: str

    def __str__(self) -> str:
        """Return both in words."""
        return f"{self.place}: {self.why}"


def usable_lanes(platform: Platform, num_prompt_tokens: int = 1) -> tuple[list[str], list[LeftOut]]:
    """Return the lanes whose speed is known and that can read prompts of that length, and why others cannot be used."""
    lanes, left_out = list[str](), list[LeftOut]()
    for lane in (*platform.devices, *platform.groups):
        try:
            speeds = [speed_on(platform, member) for member in platform.members(lane)]
        except ProfileError as error:
            left_out.append(LeftOut(lane, str(error)))
            continue
        most = min((speed.max_prompt for speed in speeds if speed.max_prompt is not None), default=num_prompt_tokens)
        if most < num_prompt_tokens:
            why = f"it reads prompts of at most {most:,} tokens, but some prompts have {num_prompt_tokens:,}"
            left_out.append(LeftOut(lane, why))
        else:
            lanes.append(lane)
    return lanes, left_out


def usable_bytes(platform: Platform, memory: str) -> float | None:
    """Return how many bytes programs may use of a memory pool or of a device's private memory; None if not known.

    Parts of a pool that are reserved for single devices do not count as the pool's.
    """
    shared = platform.memory_pools.get(memory)
    usable = USABLE_OF_A_CARD if shared is None and platform.device(memory).kind == "gpu" else USABLE
    if shared is None:
        found = platform.own_part(memory) or platform.pool_of(memory)[1].memory_bytes
        return None if found is None else found.value * usable.value
    parts = sum(part.value for one in shared.devices if (part := platform.own_part(one)) is not None)
    return None if shared.memory_bytes is None else max(0.0, shared.memory_bytes.value - parts) * usable.value


def _kind(platform: Platform, lane: str) -> tuple[str, ...]:
    """Return all facts about a lane's devices and their memories, without their names."""
    return tuple(
        platform.device(member).model_dump_json() + platform.pool_of(member)[1].model_dump_json(exclude={"devices"})
        for member in platform.members(lane)
    )


def _shares_memory(platform: Platform, one: str, other: str) -> bool:
    pools = [{platform.pool_of(member)[0] for member in platform.members(lane)} for lane in (one, other)]
    return bool(pools[0] & pools[1])


def equal_pairs(platform: Platform, machine: DerivedProfile, pairs: Iterable[LanePair]) -> dict[LanePair, LanePair]:
    """Return the pairs that differ only in names from an earlier pair, each with the first such pair."""
    alike: defaultdict[object, list[tuple[LanePair, list[object]]]] = defaultdict(list)
    found: dict[LanePair, LanePair] = {}
    for pair in pairs:
        kinds = _kind(platform, pair.target), _kind(platform, pair.draft)
        num_devices = len({*platform.members(pair.target), *platform.members(pair.draft)})
        basis = basis_of(machine, (pair.target, pair.draft))
        known = alike[pair.in_turn, kinds, _shares_memory(platform, pair.target, pair.draft), num_devices]
        first = next((one for one, its_basis in known if its_basis == basis), None)
        if first is None:
            known.append((pair, basis))
        else:
            found[pair] = first
    return found


def basis_of(machine: DerivedProfile, lanes: tuple[str, str]) -> list[object]:
    """Return all numbers that determine the times of schedules with target and draft on these lanes (may be equal).

    Schedules take equally long on two pairs of lanes with an equal basis.
    """
    profile = machine.profile
    links = [link and (link.latency_s, link.bytes_per_s) for link in (profile.link(*lanes), profile.link(*lanes[::-1]))]
    contention = profile.slowdown(*lanes), profile.pool_bytes_per_s(*lanes)
    found: list[object] = [lanes[0] == lanes[1], profile.round_overhead_s, links, contention]
    for name in lanes:
        cost = machine.costs.get(name)
        if isinstance(cost, RooflineCost):
            cost = replace(cost, device=replace(cost.device, name="", assumptions=()))
        found += [cost, profile.lane(name).model_copy(update={"name": "", "devices": ()})]
    return found
