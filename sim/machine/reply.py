"""What is waited for: an event whose time becomes known after it was handed out."""

from __future__ import annotations

from typing import Any

from simpy import Event

from costs.ticks import one_in_ticks


class Reply(Event):
    """A handle whose time is not known yet when it is handed out."""

    def arrive_at(self, time_s: float, value: Any = None) -> None:
        """From now on it is: `value` arrives then, at a whole tick."""
        self._ok = True
        self._value = value
        self.env.schedule(self, delay=one_in_ticks(time_s) - self.env.now)
