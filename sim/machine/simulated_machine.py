"""Two devices or one, and the routes between them: the machine of one schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.machine.device import Device
from sim.machine.link import Link
from sim.machine.shared_memory import SharedMemory

if TYPE_CHECKING:
    from sim.events.event_lanes import Decoded


class SimulatedMachine:
    """The devices of a schedule, one and the same where it is pooled, their memory, and the routes between them."""

    __slots__ = ("draft", "memory", "target", "to_draft", "to_target")

    def __init__(self, decoded: Decoded) -> None:
        costs, messages = decoded.costs, decoded.costs.messages
        memory = self.memory = SharedMemory(decoded.env, decoded.slowdown, has_marks=decoded.has_spans)
        self.target = Device(memory, half_s=costs.target_half_s)
        self.draft = self.target if decoded.schedule.is_pooled else Device(memory, half_s=costs.draft_half_s)
        self.to_draft, self.to_target = tuple(map(Link, messages.to_draft)), tuple(map(Link, messages.to_target))
