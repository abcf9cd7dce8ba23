"""Which lanes share no core, and which are part of no other."""

from collections.abc import Sequence
from itertools import permutations
from typing import Protocol


class PlacedLane(Protocol):
    """A lane and its cores (`LaneProfile`, `hwprofiles.host.LaneCores` and the runtime's `LaneSpec` are such)."""

    @property
    def name(self) -> str:
        """Its name in schedules."""
        ...

    @property
    def cores(self) -> tuple[int, ...]:
        """Those it is pinned to; empty if to none."""
        ...

    @property
    def num_threads(self) -> int:
        """Threads of its own."""
        ...


def split_pairs(lanes: Sequence[PlacedLane]) -> list[tuple[str, str]]:
    """Return (target's lane, draft's lane) of every two lanes that share no core, both ways round."""
    return [(one.name, two.name) for one, two in permutations(lanes, 2) if not set(one.cores) & set(two.cores)]


def whole_lanes(lanes: Sequence[PlacedLane]) -> list[str]:
    """Return lanes that are no part of another one: there both models may share a lane."""
    return [
        lane.name for lane in lanes if not lane.cores or not any(set(lane.cores) < set(other.cores) for other in lanes)
    ]
