"""Links: messages of one direction pass one after the other, and arrive a latency after their last byte has left."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from simpy import Environment, Event, Process, Timeout

from costs.ticks import one_in_ticks


class Link:
    """One direction of a link; the other one is another `Link`.

    A message occupies it for its bytes over the bandwidth, after the messages sent before, and is on its way for the
    latency, in which others may follow.

    Attributes:
        free_s: when the last message has left.
    """

    __slots__ = ("_occupied_s", "bytes_per_s", "env", "free_s", "latency_s", "name")

    def __init__(self, env: Environment, *, latency_s: float = 0.0, bytes_per_s: float, name: str = "") -> None:
        self.env = env
        self.latency_s = one_in_ticks(latency_s)
        self.bytes_per_s = bytes_per_s
        self.name = name
        self.free_s = 0.0
        self._occupied_s: dict[float, float] = {}  # by bytes: few sizes are sent again and again

    def send(self, num_bytes: float, value: Any = None) -> Event:
        """Send a message now; `value` arrives with it."""
        return Timeout(self.env, self.arrival_s(num_bytes, self.env.now) - self.env.now, value)

    def arrival_s(self, num_bytes: float, sent_s: float) -> float:
        """Send a message at a time that is known already, after all others: when it arrives."""
        occupied_s = self._occupied_s.get(num_bytes)
        if occupied_s is None:
            occupied_s = self._occupied_s[num_bytes] = one_in_ticks(num_bytes / self.bytes_per_s)
        self.free_s = max(self.free_s, sent_s) + occupied_s
        return self.free_s + self.latency_s


class Path:
    """Links in a row; each passes a message on when it has all of it. Without links nothing is crossed."""

    __slots__ = ("links",)

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)

    def send(self, env: Environment, num_bytes: float, value: Any = None) -> Process:
        """Send a message now; `value` arrives with it. It queues on every link as it comes there."""
        return env.process(self._hop(num_bytes, value))

    def arrival_s(self, num_bytes: float, sent_s: float) -> float:
        """`Link.arrival_s` of a whole path, on which nothing else comes in between."""
        for link in self.links:
            sent_s = link.arrival_s(num_bytes, sent_s)
        return sent_s

    def _hop(self, num_bytes: float, value: Any) -> Generator[Event, Any, Any]:
        for link in self.links:
            yield link.send(num_bytes)
        return value
