"""Texts and branches of them in the memory that graphs read and write.

A buffer has the keys and values of all layers for one number of slots. A text begins in the smallest and moves to the
next, twice as large, when it needs to; buffers stay, so that a graph is told once where its keys are.
Shapes: legend of `runtime.models.decoder`, plus L layers, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.backends.openvino.buckets import slot_bucket
from runtime.backends.openvino.weights.packing import memory_of
from runtime.models.config import ModelConfig

HIDDEN: Final = -6e4
"""What is added to a score that does not count: its share is zero, and sums stay what they are; float16 has it too."""

Slots = np.ndarray
"""Keys and values, [L, 2, B, K, S, H]; bfloat16 as integers of its bits."""


class Rows(NamedTuple):
    """Where the rows of one call go, and what they see.

    Attributes:
        slots: of their texts.
        first: the first of the texts.
        places: slot of every row [B, T].
        mask: additive [B, T, S].
    """

    slots: Slots
    first: int
    places: np.ndarray
    mask: np.ndarray


class TextMemory:
    """Buffers of some texts that advance together or apart; slots that were not written since they began hold zeros."""

    def __init__(self, config: ModelConfig, num_texts: int, dtype: np.dtype[Any]) -> None:
        self.config, self.num_texts, self.dtype = config, num_texts, dtype
        self._buffers: dict[int, Slots] = {}
        self._num_slots = 0

    @property
    def slots(self) -> Slots:
        """The buffer in use."""
        return self._buffers[self._num_slots]

    def restart(self, num_slots: int = 0) -> None:
        """Begin again in the smallest buffer that has so many slots."""
        self._num_slots = slot_bucket(num_slots)
        clear(self._made(self._num_slots))

    def reserve(self, num_slots: int, *, num_kept: int) -> None:
        """Have so many slots at least; where that takes another buffer, it is given the first `num_kept` of this one.

        Rows that are computed look at the buffer that was in use when they were asked for: so all memory of a call,
        and of all calls that follow from it, is reserved before the first of them.
        """
        size = slot_bucket(num_slots)
        if size <= self._num_slots:
            return
        before, after = self.slots, self._made(size)
        num_kept = min(num_kept, self._num_slots)
        after[..., :num_kept, :] = before[..., :num_kept, :]
        clear(after[..., num_kept:, :])
        self._num_slots = size

    def fill_random(self) -> None:
        """Every slot of the buffer in use, the same in all."""
        own = np.random.default_rng(0).standard_normal((self.slots.shape[-1],), np.float32)
        self.slots[...] = memory_of(own.astype(self.dtype))

    def _made(self, size: int) -> Slots:
        if size not in self._buffers:
            config = self.config
            shape = (config.num_layers, 2, self.num_texts, config.num_kv_heads, size, config.head_dim)
            self._buffers[size] = memory_of(np.empty(shape, self.dtype))
        return self._buffers[size]


def clear(slots: Slots) -> None:
    """Write zeros: hidden slots have no share, but zero times what is no number is none, and nobody's text is left."""
    slots[...] = 0


class StaticText:
    """Implements `runtime.backends.backend.Text`."""

    def __init__(self, config: ModelConfig, dtype: np.dtype[Any]) -> None:
        self.memory = TextMemory(config, 1, dtype)
        self.cursor = 0

    def start(self, num_slots: int) -> None:  # noqa: ARG002  memory grows with the text
        """Begin a text."""
        self.memory.restart()
        self.cursor = 0

    def advance(self, num_rows: int) -> None:
        """Keep the rows just written."""
        self.cursor += num_rows

    def set_length(self, length: int) -> None:
        """Keep the first so many slots."""
        self.cursor = length

    def gather(self, slots: list[int], destination: int) -> None:
        """Move slots; the cursor is after them then."""
        stop, own = destination + len(slots), self.memory.slots
        if slots != list(range(destination, stop)):
            own[..., destination:stop, :] = own[..., slots, :]
        self.cursor = stop

    def fill_random(self, length: int) -> None:
        """Random keys and values, `length` slots of them to be seen."""
        self.memory.restart(length)
        self.memory.fill_random()
        self.cursor = length

    def reserve(self, num_rows: int) -> None:
        """Have slots for the next rows, however many calls they take."""
        self.memory.reserve(self.cursor + num_rows, num_kept=self.cursor)

    def rows(self, first: int, last: int, mask: NDArray[np.float32] | None) -> Rows:
        """Some of the next rows, counted from the cursor: by an additive mask [T, cursor + T] or in text order."""
        slots, stop = self.memory.slots, self.cursor + last
        places = np.arange(self.cursor + first, stop)
        if mask is None:
            return Rows(slots, 0, places[None], _in_text_order(places[None], slots))
        seen = np.full((last - first, slots.shape[-2]), HIDDEN, np.float32)
        seen[:, :stop] = np.maximum(mask, HIDDEN)
        return Rows(slots, 0, places[None], seen[None])


class StaticBranches:
    """Implements `runtime.backends.backend.Branches`."""

    def __init__(self, config: ModelConfig, num_branches: int, dtype: np.dtype[Any], *, room: int) -> None:
        """Args: as a draft's; texts that there is memory for: calls over some branches are filled up with it."""
        self.num_branches = num_branches
        self._memory = TextMemory(config, room, dtype)
        self._num_copied = self._num_slots = 0

    def start(self, num_slots: int) -> None:
        """Begin a text; memory grows with it."""
        self._memory.restart()
        self._num_copied, self._num_slots = 0, num_slots

    def follow(self, text: StaticText, *, num_final: int, stop: int) -> None:
        """Give every branch the slots of a text up to `stop`; the first `num_final` stay as they are."""
        self.copy(text, slice(None), self._num_copied, stop)
        self._num_copied = num_final

    def copy(self, text: StaticText, layers: slice, start: int, stop: int) -> None:
        """Give every branch some slots of a text, in some layers."""
        own, given = self._slots(stop), text.memory.slots
        own[layers, :, : self.num_branches, :, start:stop] = given[layers, :, :, :, start:stop]

    def give(self, branch: int, start: int, stop: int, text: StaticText) -> None:
        """Put slots of a branch into a text."""
        text.memory.reserve(stop, num_kept=start)
        text.memory.slots[:, :, 0, :, start:stop] = self._slots(stop)[:, :, branch, :, start:stop]

    def fill_random(self) -> None:
        """Random keys and values in every slot."""
        self._memory.restart(self._num_slots)
        self._memory.fill_random()

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """Where the next rows of some branches go: at these places in their texts."""
        places = np.array(positions_RT)
        slots = self._slots(int(places.max()) + 1)
        rows = Rows(slots, branches.start or 0, places, _in_text_order(places, slots))
        return BranchRows(rows, places)

    def after_window(self, text: StaticText, num_window: int, rows: BranchRows) -> WindowThenBranches:
        """The next rows of a text, and then rows of branches."""
        return WindowThenBranches(text, num_window, self, rows)

    def _slots(self, num_slots: int) -> Slots:
        self._memory.reserve(num_slots, num_kept=num_slots)
        return self._memory.slots


class BranchRows(NamedTuple):
    """Rows of branches, and their rotary positions: their places in the text."""

    rows: Rows
    positions_RT: NDArray[np.int64]


class WindowThenBranches(NamedTuple):
    """Rows of a text, and then one row of every branch."""

    text: StaticText
    num_window: int
    branches: StaticBranches
    rows: BranchRows


def scratch_rows(config: ModelConfig, num_texts: int, num_rows: int, num_slots: int, dtype: np.dtype[Any]) -> Rows:
    """The first rows of texts that nobody reads: all layers write to the same memory."""
    one = memory_of(np.zeros((num_texts, config.num_kv_heads, num_slots, config.head_dim), dtype))
    slots = np.lib.stride_tricks.as_strided(one, (config.num_layers, 2, *one.shape), (0, 0, *one.strides))
    places = np.tile(np.arange(num_rows), (num_texts, 1))
    return Rows(slots, 0, places, _in_text_order(places, slots))


def _in_text_order(places_BT: np.ndarray, slots: Slots) -> np.ndarray:
    """Every row sees its text up to itself, [B, T, S]."""
    hidden = np.arange(slots.shape[-2]) > places_BT[..., None]
    return np.where(hidden, np.float32(HIDDEN), np.float32(0))
