"""The host: the CPU through which replies pass before anything is done about them."""

from __future__ import annotations

from typing import Any

from simpy import Environment, Event, Timeout

from costs.ticks import one_in_ticks


class Host:
    """Handles one message after the other, each for the same time.

    Attributes:
        handling_s: that time.
        free_s: when the last one has been handled.
    """

    __slots__ = ("env", "free_s", "handling_s")

    def __init__(self, env: Environment, *, handling_s: float = 0.0) -> None:
        self.env = env
        self.handling_s = one_in_ticks(handling_s)
        self.free_s = 0.0

    def handle(self, value: Any = None) -> Event:
        """Handle a message that comes now; `value` goes on with it."""
        return Timeout(self.env, self.handled_s(self.env.now) - self.env.now, value)

    def handled_s(self, arrives_s: float) -> float:
        """When a message has been handled that arrives then, after all others."""
        start_s = max(self.free_s, arrives_s)
        self.free_s = start_s + self.handling_s
        return self.free_s
