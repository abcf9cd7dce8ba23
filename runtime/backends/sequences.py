"""Sequences and their branches in memory that calls read and write in place, for arrays of either library.

Shapes: legend of `runtime.models.decoder`, plus L layers, S KV positions, R branches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from runtime.arrays import inference

Segment = tuple[int, int]
"""Layers done before, and layers done after."""


class Memory(Protocol):
    """Keys and values of some sequences; positions that were not written since they began hold zeros."""

    @property
    def slots(self) -> Any:
        """Array in use, [L, 2, B, K, S, H]."""

    def start(self, num_slots: int) -> None:
        """Begin sequences that will need so many KV positions."""

    def start_random(self, num_slots: int) -> None:
        """Begin sequences with random keys and values, all written: untouched memory would time too fast."""

    def reserve(self, num_slots: int, *, num_kept: int) -> None:
        """Have at least so many KV positions, the first `num_kept` as they were; raise `LaneError` without room."""


class Text:
    """Keys and values of one sequence, by KV position; those from `cursor` on are garbage, and finite."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.cursor = memory, 0

    def start(self, num_slots: int) -> None:
        """Begin a sequence that will need so many KV positions."""
        self.memory.start(num_slots)
        self.cursor = 0

    def advance(self, num_rows: int) -> None:
        """Keep the rows just written."""
        self.set_length(self.cursor + num_rows)

    def set_length(self, length: int) -> None:
        """Keep the first so many KV positions, written last or long ago: a number, not a copy."""
        self.memory.reserve(length, num_kept=length)
        self.cursor = length

    @inference
    def gather(self, slots: list[int], destination: int) -> None:
        """Move KV positions to `destination`, `destination` + 1, ... and put the cursor after them."""
        stop = destination + len(slots)
        self.memory.reserve(stop, num_kept=max([stop, *(slot + 1 for slot in slots)]))
        if slots != list(range(destination, stop)):
            own = self.memory.slots
            own[..., destination:stop, :] = own[..., slots, :]
            self.memory.reserve(stop, num_kept=destination)  # memory of another size holds what was there before
        self.cursor = stop

    def fill_random(self, length: int) -> None:
        """Fill the memory with random keys and values, of which `length` positions are seen, to time a step after."""
        self.memory.start_random(length)
        self.cursor = length


class BranchCaches(ABC):
    """Sequences that begin as one and part: each key lies where it would lie if its branch were the sequence.

    Branches that shared their beginning would sum in another order, and name another token in a near tie. The price is
    memory, a copy of the sequence for each branch; little time, for what is copied once stays.
    """

    def __init__(self, memory: Memory, num_branches: int) -> None:
        """Take memory for `num_branches` and for those that pad calls."""
        self.memory, self.num_branches = memory, num_branches
        self._num_copied = self._num_slots = 0

    def start(self, num_slots: int) -> None:
        """Begin a sequence that will need so many KV positions."""
        if self.num_branches:
            self.memory.start(num_slots)
        self._num_copied, self._num_slots = 0, num_slots

    def follow(self, text: Text, *, num_final: int, stop: int) -> None:
        """Copy the KV positions of a sequence up to `stop` to all branches; the first `num_final` stay as they are."""
        self.copy(text, slice(None), self._num_copied, stop)
        self._num_copied = num_final

    @inference
    def copy(self, text: Text, layers: slice, start: int, stop: int) -> None:
        """Copy some KV positions of a sequence to all branches, in some layers."""
        if self.num_branches:
            self.memory.reserve(stop, num_kept=stop)
            given = text.memory.slots[layers, :, :, :, start:stop]
            self.memory.slots[layers, :, : self.num_branches, :, start:stop] = given

    @inference
    def give(self, branch: int, start: int, stop: int, text: Text) -> None:
        """Copy KV positions of a branch to a sequence, at the same places."""
        self.memory.reserve(stop, num_kept=stop)
        text.memory.reserve(stop, num_kept=start)
        text.memory.slots[:, :, 0, :, start:stop] = self.memory.slots[:, :, branch, :, start:stop]

    @inference
    def take(self, branch: int, stop: int, text: Text) -> None:
        """Copy the KV positions of a sequence up to `stop` to one branch, at the same places."""
        self.memory.reserve(stop, num_kept=stop)
        self.memory.slots[:, :, branch, :, :stop] = text.memory.slots[:, :, 0, :, :stop]

    def fill_random(self) -> None:
        """Fill the memory with random keys and values."""
        self.memory.start_random(self._num_slots)

    @abstractmethod
    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> Any:
        """Return where the next rows of some branches go, for `run_layers` with `x` [R, T, D]."""

    def after_window(self, text: Text, num_window: int, branches: slice, positions: Sequence[int]) -> Any:
        """Return where a sequence's next rows go, then a row of some branches that see them: [1, num_window + R, D]."""
        if self.num_branches:
            # memory that grew when the window is copied would be another than that of the rows
            self.memory.reserve(text.cursor + num_window, num_kept=text.cursor)
        rows = self.rows(branches, [[position] for position in positions])
        return WindowAndBranches(text, num_window, self, rows)


class BranchRows(NamedTuple):
    """Where rows of branches go: what the back end's call needs, and their places in the sequence."""

    call: Any
    positions_RT: Any


class WindowAndBranches(NamedTuple):
    """Rows of a sequence, and then one row of every branch."""

    text: Text
    num_window: int
    branches: BranchCaches
    rows: BranchRows
