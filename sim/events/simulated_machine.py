"""The machine that a sequence or a batch is decoded on: the parts of `sim.machine` that its schedule uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from costs.crossings import Way
from sim.machine.device import Device
from sim.machine.host_cpu import Host
from sim.machine.link import Link, Path
from sim.machine.memory_pool import MemoryPool, Run

if TYPE_CHECKING:
    from sim.events.event_lanes import Decoded


class MeasuredPool(MemoryPool):
    """The memory of the target's and the draft's device, of which is known what they cost each other.

    That holds what was measured of the pair and their fair shares of the bandwidth, see `costs.contention`.
    """

    __slots__ = ("_slowdown",)

    def __init__(self, decoded: Decoded) -> None:
        super().__init__(decoded.env, has_marks=decoded.has_spans)
        self._slowdown = decoded.slowdown

    def slow(self, active: Sequence[Run]) -> None:
        """See `MemoryPool`; the target's device joined first."""
        target, draft = active
        target.slowdown, draft.slowdown = self._slowdown(target.what, draft.what)


class SimulatedMachine:
    """Two devices or one, the ways between them, and the host next to the target.

    Attributes:
        target, draft: the devices; one and the same where a schedule is pooled.
        to_draft, to_target: the ways between them.
        host: handles every verdict before the driver acts on it.
    """

    __slots__ = ("draft", "host", "target", "to_draft", "to_target")

    def __init__(self, decoded: Decoded) -> None:
        env, costs = decoded.env, decoded.costs
        pool = MeasuredPool(decoded)

        def path(way: Way) -> Path:
            return Path([Link(env, latency_s=hop.latency_s, bytes_per_s=hop.bytes_per_s, name=hop.name) for hop in way])

        self.target = Device(pool, dispatch_s=2 * costs.target_half_s)
        self.draft = self.target if decoded.schedule.is_pooled else Device(pool, dispatch_s=2 * costs.draft_half_s)
        self.to_draft, self.to_target = path(costs.messages.to_draft), path(costs.messages.to_target)
        self.host = Host(env, handling_s=costs.round_overhead_s)
