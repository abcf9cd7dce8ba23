"""Sequences and their branches in static memory, which compiled or captured calls read and write in place.

What is here holds for arrays of either library; how memory grows, and what a call is told of its rows, is each back
end's own. Shapes: legend of `runtime.models.decoder`, plus L layers, S KV positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from runtime.arrays import concatenated, inference
from runtime.backends.backend import Segment


class StaticMemory(Protocol):
    """Keys and values of some sequences; positions that were not written since they began hold zeros."""

    @property
    def slots(self) -> Any:
        """The array in use, [L, 2, B, K, S, H]."""

    def start(self, num_slots: int) -> None:
        """Begin sequences that will need so many KV positions."""

    def start_random(self, num_slots: int) -> None:
        """Begin sequences of so many KV positions with random keys and values, the same in all of them."""

    def reserve(self, num_slots: int, *, num_kept: int) -> None:
        """Have so many KV positions at least, the first `num_kept` as they were; raises `LaneError` where it cannot."""


class StaticText:
    """Implements `runtime.backends.backend.Text`."""

    def __init__(self, memory: StaticMemory) -> None:
        self.memory, self.cursor = memory, 0

    def start(self, num_slots: int) -> None:
        """Begin a sequence that will need so many KV positions."""
        self.memory.start(num_slots)
        self.cursor = 0

    def advance(self, num_rows: int) -> None:
        """Keep the rows just written."""
        self.set_length(self.cursor + num_rows)

    def set_length(self, length: int) -> None:
        """Keep the first so many KV positions."""
        self.memory.reserve(length, num_kept=length)
        self.cursor = length

    @inference
    def gather(self, slots: list[int], destination: int) -> None:
        """Move KV positions; the cursor is after them then."""
        stop = destination + len(slots)
        self.memory.reserve(stop, num_kept=stop)
        if slots != list(range(destination, stop)):
            own = self.memory.slots
            own[..., destination:stop, :] = own[..., slots, :]
        self.cursor = stop

    def fill_random(self, length: int) -> None:
        """Put random keys and values everywhere, `length` KV positions of which are to be seen."""
        self.memory.start_random(length)
        self.cursor = length


class StaticBranches:
    """Implements `runtime.backends.backend.Branches`, but for `rows`, which is each back end's own."""

    def __init__(self, memory: StaticMemory, num_branches: int) -> None:
        """Args: for all branches, and for those that calls are filled up with; how many there are."""
        self.memory, self.num_branches = memory, num_branches
        self._num_copied = self._num_slots = 0

    def start(self, num_slots: int) -> None:
        """Begin a sequence that will need so many KV positions."""
        if self.num_branches:
            self.memory.start(num_slots)
        self._num_copied, self._num_slots = 0, num_slots

    def follow(self, text: StaticText, *, num_final: int, stop: int) -> None:
        """Give every branch the KV positions of a sequence up to `stop`; the first `num_final` stay as they are."""
        self.copy(text, slice(None), self._num_copied, stop)
        self._num_copied = num_final

    @inference
    def copy(self, text: StaticText, layers: slice, start: int, stop: int) -> None:
        """Give every branch some KV positions of a sequence, in some layers."""
        if self.num_branches:
            self.memory.reserve(stop, num_kept=stop)
            given = text.memory.slots[layers, :, :, :, start:stop]
            self.memory.slots[layers, :, : self.num_branches, :, start:stop] = given

    @inference
    def give(self, branch: int, start: int, stop: int, text: StaticText) -> None:
        """Put KV positions of a branch into a sequence, at the same places."""
        self.memory.reserve(stop, num_kept=stop)
        text.memory.reserve(stop, num_kept=start)
        text.memory.slots[:, :, 0, :, start:stop] = self.memory.slots[:, :, branch, :, start:stop]

    def fill_random(self) -> None:
        """Put random keys and values everywhere."""
        self.memory.start_random(self._num_slots)

    def after_window(self, text: StaticText, num_window: int, rows: StaticRows) -> StaticWindow:
        """Return where the next rows of a sequence go, and then a row of every branch."""
        return StaticWindow(text, num_window, self, rows)


class StaticRows(NamedTuple):
    """Where rows of branches go.

    Attributes:
        call: what the back end tells its call of them.
        positions_RT: their rotary positions, which are their places in the sequence.
    """

    call: Any
    positions_RT: Any


class StaticWindow(NamedTuple):
    """Rows of a sequence, and then one row of every branch."""

    text: StaticText
    num_window: int
    branches: StaticBranches
    rows: StaticRows


class StaticCalls(ABC):
    """The part of `runtime.backends.backend.Backend` that hands rows to calls over a sequence, or over branches."""

    @inference
    def run_layers(self, x_BTD: Any, start: int, stop: int, *, positions: Any, mask: Any = None, cache: Any) -> Any:
        """Hidden states after layer `stop`; raises `LaneError` where a sequence has too few KV positions."""
        segment = start, stop
        if start == stop:
            return x_BTD
        if isinstance(cache, StaticWindow):
            count, text = cache.num_window, cache.text
            window = self._run_text(x_BTD[:, :count], segment, positions[:count], None, text)
            cache.branches.copy(text, slice(start, stop), text.cursor, text.cursor + count)
            after = self._run_branches(x_BTD[0, count:, None], segment, positions[count:, None], cache.rows)
            return concatenated([window, after.swapaxes(0, 1)], axis=1)
        if isinstance(cache, StaticRows):
            return self._run_branches(x_BTD, segment, positions, cache)
        assert isinstance(cache, StaticText), "a text of another back end"
        return self._run_text(x_BTD, segment, positions, mask, cache)

    @abstractmethod
    def _run_text(self, x_BTD: Any, segment: Segment, positions: Any, mask: Any, text: Any) -> Any:
        """Rows of a sequence, in its order or by a mask, in as many calls as they take."""

    @abstractmethod
    def _run_branches(self, x_RTD: Any, segment: Segment, positions: Any, rows: StaticRows) -> Any:
        """Rows of branches."""
