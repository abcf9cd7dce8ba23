"""The machine that one sequence is decoded on: the parts of `sim.machine` that its schedule uses."""

from __future__ import annotations

from collections.abc import Sequence

from costs.crossings import Way
from sim.events.simulated_sequence import SimulatedSequence
from sim.machine.device import Device
from sim.machine.host_cpu import Host
from sim.machine.link import Link, Path
from sim.machine.memory_pool import MemoryPool, Run


class MeasuredPool(MemoryPool):
    """The memory of the target's and the draft's device, of which is known what they cost each other.

    That holds what was measured of the pair and their fair shares of the bandwidth, see `costs.contention`.
    """

    __slots__ = ("_sequence", "_slowdowns")

    def __init__(self, sequence: SimulatedSequence) -> None:
        super().__init__(sequence.env, has_marks=sequence.has_spans)
        self._sequence = sequence
        self._slowdowns = sequence.costs.slowdowns

    def slow(self, active: Sequence[Run]) -> None:
        """See `MemoryPool`; the target's device joined first."""
        target, draft = active
        of_target, of_draft = self._slowdowns[target.what][draft.what]
        place = self._sequence.place
        target.slowdown, draft.slowdown = of_target[place], of_draft[place]


class MachineRoom:
    """Two devices or one, the ways between them, and the host next to the target.

    Attributes:
        target, draft: the devices; one and the same where a schedule is pooled.
        to_draft, to_target: the ways between them.
        host: handles every verdict before the driver acts on it.
    """

    __slots__ = ("draft", "host", "target", "to_draft", "to_target")

    def __init__(self, sequence: SimulatedSequence) -> None:
        env, costs = sequence.env, sequence.costs
        pool = MeasuredPool(sequence)

        def path(way: Way) -> Path:
            return Path([Link(env, latency_s=hop.latency_s, bytes_per_s=hop.bytes_per_s, name=hop.name) for hop in way])

        self.target = Device(pool, dispatch_s=2 * costs.target_half_s)
        self.draft = self.target if sequence.schedule.is_pooled else Device(pool, dispatch_s=2 * costs.draft_half_s)
        self.to_draft, self.to_target = path(costs.messages.to_draft), path(costs.messages.to_target)
        self.host = Host(env, handling_s=costs.round_overhead_s)
