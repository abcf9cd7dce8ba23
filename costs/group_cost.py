"""A lane of several devices: what one member's share costs, and the collectives that they wait for.

Closed forms of what a group does together, over links of equal latency and bandwidth; `num_bytes` is what every device
holds in the end. Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH
(2005); the ring is that of NCCL.
"""

from typing import Literal

from costs.cost_model import Floats, LaneCost, MeasuredCost, Part, PartFacts
from hwprofiles.lane_profile import DeviceGroup
from hwprofiles.profile import LaneProfile

Algorithm = Literal["ring", "tree"]
_ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree")


def all_reduce_s(
    num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float, algorithm: Algorithm = "ring"
) -> float:
    """Everybody gets the sum of what all hold.

    Ring: a reduce-scatter and an all-gather, each of n - 1 steps with an n-th of the bytes. Tree: sums go up a binomial
    tree and the result comes down again, all bytes on every level.
    """
    if algorithm == "tree":
        return 2 * _num_levels(num_devices) * (latency_s + num_bytes / bytes_per_s)
    steps = 2 * (num_devices - 1)
    return steps * (latency_s + num_bytes / num_devices / bytes_per_s)


def all_gather_s(num_bytes: float, num_devices: int, *, latency_s: float, bytes_per_s: float) -> float:
    """Everybody gets the shares of all: what is held doubles from step to step (Bruck, any number of devices)."""
    return _num_levels(num_devices) * latency_s + (num_devices - 1) / num_devices * num_bytes / bytes_per_s


def _num_levels(num_devices: int) -> int:
    """Levels of a binary tree of so many devices below its root: ceil(log2)."""
    return (num_devices - 1).bit_length()


class GroupCost:
    """See `costs.cost_model.LaneCost`; `share` is the cost of a member."""

    def __init__(self, share: LaneCost, group: DeviceGroup) -> None:
        self._share = share
        self._group = group

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        return self._share.seconds(part, rows, contexts) + sum(self.collectives_s(part, rows))

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        return self._share.missing(part, rows, contexts)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        return self._share.facts(part)

    def collectives_s(self, part: Part, rows: float) -> tuple[float, ...]:
        """How long each collective of one call takes, in order."""
        group = self._group
        speed = {"latency_s": group.latency_s, "bytes_per_s": group.bytes_per_s}
        reduced_bytes, gathered_bytes = rows * group.reduced_bytes_per_row, rows * group.gathered_bytes_per_row
        reduce_s = min(
            all_reduce_s(reduced_bytes, group.num_devices, algorithm=algorithm, **speed)
            for algorithm in ((group.algorithm,) if group.algorithm else _ALGORITHMS)
        )
        gather_s = all_gather_s(gathered_bytes, group.num_devices, **speed)
        return (reduce_s,) * group.all_reduces.get(part.kind, 0) + (gather_s,) * group.all_gathers.get(part.kind, 0)


def cost_of(lane: LaneProfile, share: LaneCost | None = None) -> LaneCost:
    """Return the cost of a lane, be it one device or several; `share` replaces what a member is measured to cost."""
    share = MeasuredCost(lane) if share is None else share
    return share if lane.group is None else GroupCost(share, lane.group)
