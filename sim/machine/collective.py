"""Collectives, played over the links of a group step by step: so they queue after other messages of those links.

On links that carry nothing else they take what the closed forms of `costs.collectives` say.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

from simpy import Environment, Event, Process

from costs.collectives import Algorithm, num_levels
from sim.machine.link import Link

Step = Sequence[tuple[Link, float]]
"""What is sent at once: bytes over links. The next step begins when all of it has arrived."""


class Collective:
    """A group of devices; `links[i]` is the way out of the i-th one, to whichever of the others."""

    __slots__ = ("_env", "algorithm", "links")

    def __init__(self, env: Environment, links: Sequence[Link], algorithm: Algorithm = "ring") -> None:
        self._env = env
        self.links = tuple(links)
        self.algorithm = algorithm

    def all_reduce(self, num_bytes: float) -> Process:
        """Everybody gets the sum of what all hold: that many bytes."""
        if self.algorithm == "tree":
            up, down = self._levels(num_bytes, is_up=True), self._levels(num_bytes, is_up=False)
            return self._play([*up, *reversed(down)])
        return self._play([self._around(num_bytes)] * (2 * (len(self.links) - 1)))

    def all_gather(self, num_bytes: float) -> Process:
        """Everybody gets the shares of all, that many bytes in the end."""
        if self.algorithm == "tree":
            return self._play(list(self._doublings(num_bytes)))
        return self._play([self._around(num_bytes)] * (len(self.links) - 1))

    def _around(self, num_bytes: float) -> Step:
        """Everybody sends a share to the next."""
        return [(link, num_bytes / len(self.links)) for link in self.links]

    def _levels(self, num_bytes: float, *, is_up: bool) -> list[Step]:
        """A binomial tree from its leaves on: of the devices left on a level every other one has the next as child."""
        count = len(self.links)
        steps: list[Step] = []
        for distance in (1 << level for level in range(num_levels(count))):
            parents = range(0, count - distance, 2 * distance)
            senders = [parent + distance * is_up for parent in parents]
            steps.append([(self.links[sender], num_bytes) for sender in senders])
        return steps

    def _doublings(self, num_bytes: float) -> Iterator[Step]:
        """Everybody sends what it holds, as far as the receiver lacks it."""
        held, count = 1, len(self.links)
        while held < count:
            sent = min(held, count - held)
            yield [(link, num_bytes * sent / count) for link in self.links]
            held += sent

    def _play(self, steps: Sequence[Step]) -> Process:
        return self._env.process(self._flow(steps))

    def _flow(self, steps: Sequence[Step]) -> Generator[Event, Any, None]:
        for step in steps:
            yield self._env.all_of([link.send(num_bytes) for link, num_bytes in step])
