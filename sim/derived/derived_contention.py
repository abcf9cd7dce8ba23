"""Derives from data sheets how much lanes on one memory slow each other down."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import hypot
from typing import Final

import numpy as np

from costs.contention import PairContention
from costs.cost_model import GroupCost, LaneCost, Part, traffic
from decoding.errors import ProfileError
from hwprofiles.lane_profile import DeviceGroup, LanePart
from hwprofiles.platform import SECOND_STREAM, Platform
from hwprofiles.profile import Contention
from sim.derived.assumption import Assumption
from sim.derived.roofline import TYPICAL_CONTEXT, RooflineCost

POOL_EFFICIENCY: Final = Assumption.shipped("memory_pool.efficiency")


def contentions(
    platform: Platform,
    costs: Mapping[str, RooflineCost],
    groups: Mapping[str, DeviceGroup | None],
    pairs: Iterable[tuple[str, str]],
    efficiency: Assumption = POOL_EFFICIENCY,
) -> Iterator[Contention]:
    """Yield the contention of each pair that shares a memory, in both directions: max-min fair shares of its bandwidth.

    For two single devices the simulator computes the shares per operation. For groups they are computed here once, for
    a layer and a draft step.
    """
    whole: dict[str, LaneCost] = {
        name: cost if (group := groups[name]) is None else GroupCost(cost, group) for name, cost in costs.items()
    }

    @cache
    def drawn(name: str, kind: LanePart) -> float:
        """Return the bytes per second that a member of a lane draws while the lane runs a part alone."""
        part, dispatch_s = Part(kind), costs[name].device.graph_s if kind == "draft_step" else 0.0
        one = whole[name]
        typical = np.array([min(float(TYPICAL_CONTEXT), one.facts(part).most_positions - 1)])
        return float(traffic(one, part, 1, typical)[0]) / (float(one.seconds(part, 1, typical)[0]) + dispatch_s)

    for pair in pairs:
        pools = [[platform.pool_of(member)[0] for member in platform.members(name)] for name in pair]
        shared = sorted(set(pools[0]) & set(pools[1]))
        if not shared:
            continue
        memories = dict(platform.pool_of(member) for member in platform.members(pair[0]))
        capacity = efficiency.value * min(memories[pool].bytes_per_s.value for pool in shared)
        num_members = dict(zip(pair, (max(own.count(pool) for pool in shared) for own in pools), strict=True))
        is_by_operation = max(map(len, pools)) == 1
        for target, draft in (pair, pair[::-1]):
            slowdown = (1.0, 1.0)
            if not is_by_operation:
                wants = (num_members[target] * drawn(target, "layer"), num_members[draft] * drawn(draft, "draft_step"))
                slowdown = PairContention(1.0, 1.0, capacity).slowdown_of_two(*wants)
            fair = Contention(
                lanes=(target, draft),
                slowdown=slowdown,
                pool_bytes_per_s=capacity if is_by_operation else None,
                relative_error=efficiency.relative_error,
                source=f"fair shares of {' and '.join(shared)}",
            )
            yield _of_streams(fair, streams_slowdown(platform, *pair)) if are_streams(*pair) else fair


def are_streams(one: str, other: str) -> bool:
    """Return whether two lanes are the two streams of one device."""
    return one != other and one.removesuffix(SECOND_STREAM) == other.removesuffix(SECOND_STREAM)


def streams_slowdown(platform: Platform, one: str, other: str) -> Assumption:
    """Return the slowdown of a device's two streams by its sheet; raises `ProfileError` if the sheet gives none."""
    name = min(one, other, key=len)
    found = platform.device(name).two_streams_slowdown
    if found is None:
        raise ProfileError(f"device {name!r} gives no two_streams_slowdown; measure it, or give it")
    return Assumption.of_quantity(f"{name}.two_streams_slowdown", found)


def _of_streams(fair: Contention, slower: Assumption) -> Contention:
    """Return the contention of two streams: at least `slower`, as streams also share the device's compute units."""
    target, draft = (max(share, slower.value) for share in fair.slowdown)
    return fair.model_copy(
        update={
            "slowdown": (target, draft),
            "relative_error": hypot(fair.relative_error, slower.relative_error),
            "source": f"{fair.source}, and no less than {slower.value:g} for two streams",
        }
    )
