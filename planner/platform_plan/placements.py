"""Where target and draft could run on a platform: every different place once, however many equal devices there are."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hwprofiles.platform import Platform


class LanePair(NamedTuple):
    """Where a target and its draft run: on two lanes, or both on one."""

    target: str
    draft: str

    @property
    def is_pooled(self) -> bool:
        """Whether they take turns on one lane."""
        return self.target == self.draft

    def __str__(self) -> str:
        return f"both on {self.target}" if self.is_pooled else f"target on {self.target}, draft on {self.draft}"


def lane_pairs(platform: Platform) -> list[LanePair]:
    """Every different placement, those on one lane first.

    Two devices are the same place if their numbers are; two draft lanes if they are also as near to the target's, by
    links and by memory.
    """
    targets = _different(platform, [*platform.devices, *platform.groups])
    pairs = [LanePair(lane, lane) for lane in targets]
    for target in targets:
        known: set[object] = set()
        for draft in (*platform.devices, *platform.groups):
            if set(platform.members(target)) & set(platform.members(draft)):
                continue
            key = (_kind(platform, draft), _nearness(platform, target, draft))
            if key not in known:
                known.add(key)
                pairs.append(LanePair(target, draft))
    return pairs


def _different(platform: Platform, lanes: list[str]) -> list[str]:
    kinds: dict[object, str] = {}
    for lane in lanes:
        kinds.setdefault(_kind(platform, lane), lane)
    return list(kinds.values())


def _kind(platform: Platform, lane: str) -> tuple[str, ...]:
    """Everything that is known of a lane's devices and their memories, their names left out."""
    return tuple(
        platform.device(member).model_dump_json() + platform.pool_of(member)[1].model_dump_json(exclude={"devices"})
        for member in platform.members(lane)
    )


def _nearness(platform: Platform, target: str, draft: str) -> tuple[object, ...]:
    """The links from one lane to the other, and how many memories they share."""
    ends = platform.members(target)[0], platform.members(draft)[0]
    links = tuple(platform.link(*hop).model_dump_json(exclude={"between"}) for hop in pairwise(platform.path(*ends)))
    pools = ({platform.pool_of(member)[0] for member in platform.members(lane)} for lane in (target, draft))
    return (links, len(set.intersection(*pools)))
