"""Which pairs of lanes share no core, and which lanes are not part of a larger one."""

from collections.abc import Sequence
from itertools import permutations
from typing import Protocol


class PlacedLane(Protocol):
    """A lane and its cores: a `LaneProfile`, a `hwprofiles.host.LaneCores` or the runtime's `LaneSpec`."""

    @property
    def name(self) -> str:
        """The lane's name in schedules."""
        ...

    @property
    def cores(self) -> tuple[int, ...]:
        """Logical cores that the lane is pinned to; empty if it is not pinned."""
        ...

    @property
    def num_threads(self) -> int:
        """Threads that the lane computes with."""
        ...


def split_pairs(lanes: Sequence[PlacedLane]) -> list[tuple[str, str]]:
    """Return all ordered pairs (target's lane, draft's lane) of lanes that share no core."""
    return [(one.name, two.name) for one, two in permutations(lanes, 2) if not set(one.cores) & set(two.cores)]


def whole_lanes(lanes: Sequence[PlacedLane]) -> list[str]:
    """Return the lanes whose cores are not a proper part of another lane's: target and draft may share such a lane."""
    return [
        lane.name for lane in lanes if not lane.cores or not any(set(lane.cores) < set(other.cores) for other in lanes)
    ]
