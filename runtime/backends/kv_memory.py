"""KV caches of a sequence and of its branches, on any back end; calls read and write their memory in place.

Shapes: legend of `runtime.models.decoder`; L layers, S KV positions, R branches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from runtime.arrays import inference

Segment = tuple[int, int]
"""Consecutive layers: the number of layers before the first one, and the number including the last one."""


class Memory(Protocol):
    """Keys and values of some sequences; positions that a sequence has not written yet hold zeros."""

    @property
    def slots(self) -> Any:
        """The array in use, [L, 2, B, K, S, H]."""

    def start(self, num_slots: int) -> None:
        """Begin sequences that will need `num_slots` KV positions."""

    def start_random(self, num_slots: int) -> None:
        """Begin sequences with random keys and values; for timing, as calls over untouched memory are too fast."""

    def reserve(self, num_slots: int, *, num_kept: int) -> None:
        """Make room for `num_slots` KV positions, keeping the first `num_kept`; raise `LaneError` without room."""


class SequenceCache:
    """The KV cache of one sequence; positions from `cursor` on hold unused, finite numbers."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.cursor = memory, 0

    def start(self, num_slots: int) -> None:
        """Begin a sequence that will need `num_slots` KV positions."""
        self.memory.start(num_slots)
        self.cursor = 0

    def advance(self, num_rows: int) -> None:
        """Keep `num_rows` rows written at the cursor."""
        self.set_length(self.cursor + num_rows)

    def set_length(self, length: int) -> None:
        """Keep the first `length` KV positions; nothing is copied."""
        self.memory.reserve(length, num_kept=length)
        self.cursor = length

    @inference
    def gather(self, slots: list[int], destination: int) -> None:
        """Move KV positions to `destination`, `destination` + 1, ... and put the cursor after them."""
        stop = destination + len(slots)
        self.memory.reserve(stop, num_kept=max([stop, *(slot + 1 for slot in slots)]))
        if slots != list(range(destination, stop)):
            memory = self.memory.slots
            memory[..., destination:stop, :] = memory[..., slots, :]
            self.memory.reserve(stop, num_kept=destination)  # memory of another size has old keys from there on
        self.cursor = stop

    def fill_random(self, length: int) -> None:
        """Fill the memory with random keys and values, to time calls after the first `length` positions."""
        self.memory.start_random(length)
        self.cursor = length


class BranchCaches(ABC):
    """The KV caches of branches, each with its own copy of the sequence, at the same positions.

    If branches shared the sequence's keys, attention would sum in another order and could choose another token in a
    near tie. Copies take memory but little time, since a position is copied once.
    """

    def __init__(self, memory: Memory, num_branches: int) -> None:
        """Take memory for `num_branches`, and for any branches that pad calls."""
        self.memory, self.num_branches = memory, num_branches
        self._num_copied = self._num_slots = 0

    def start(self, num_slots: int) -> None:
        """Begin a sequence that will need `num_slots` KV positions."""
        if self.num_branches:
            self.memory.start(num_slots)
        self._num_copied, self._num_slots = 0, num_slots

    @inference
    def follow(self, text: SequenceCache, *, num_final: int, stop: int) -> None:
        """Copy new KV positions of a sequence, up to `stop`, to all branches; the first `num_final` will not change."""
        if self.num_branches:
            start = self._num_copied
            self.memory.reserve(stop, num_kept=stop)
            given = text.memory.slots[..., start:stop, :]
            self.memory.slots[:, :, : self.num_branches, :, start:stop] = given
        self._num_copied = num_final

    @inference
    def give(self, branch: int, start: int, stop: int, text: SequenceCache) -> None:
        """Copy KV positions of a branch to a sequence, at the same positions."""
        self.memory.reserve(stop, num_kept=stop)
        text.memory.reserve(stop, num_kept=start)
        text.memory.slots[:, :, 0, :, start:stop] = self.memory.slots[:, :, branch, :, start:stop]

    @inference
    def take(self, branch: int, stop: int, text: SequenceCache) -> None:
        """Copy the KV positions of a sequence up to `stop` to one branch, at the same positions."""
        self.memory.reserve(stop, num_kept=stop)
        self.memory.slots[:, :, branch, :, :stop] = text.memory.slots[:, :, 0, :, :stop]

    def fill_random(self) -> None:
        """Fill the memory with random keys and values."""
        self.memory.start_random(self._num_slots)

    @abstractmethod
    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> Any:
        """Return a `cache` for `run_layers` over the next rows of some branches, [R, T, D], at these positions."""


class BranchRows(NamedTuple):
    """A `cache` for rows of branches: what the back end's call needs, and the positions of the rows."""

    call: Any
    positions_RT: Any
