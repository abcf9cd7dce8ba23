"""An event that calls one function at a known time: most events of the world are that, and it is made faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL


class Wake(Event):
    """A `simpy.Timeout` with its only callback."""

    def __init__(self, env: Environment, delay: float, callback: Callable[[Event], Any]) -> None:
        self.env = env
        self.callbacks = self._kept = [callback]
        self._value = None
        self._ok = True
        env.schedule(self, NORMAL, delay)

    def again(self, delay: float) -> None:
        """Once more, after it has come: cheaper than a new event, and the same to everybody who did not keep it."""
        self.callbacks = self._kept
        self.env.schedule(self, NORMAL, delay)
