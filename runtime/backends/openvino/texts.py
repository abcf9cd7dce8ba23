"""Texts and branches of them in the memory that graphs read and write.

A buffer holds keys and values of all layers for one number of slots. A text begins in the smallest and moves to the
next, twice as large; buffers stay, so that a graph is told once where its keys are. Shapes: legend of
`runtime.models.decoder`, plus L layers, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.backends.openvino.buckets import slot_bucket
from runtime.backends.openvino.weights.packing import memory_of
from runtime.backends.sequences import Branches, BranchRows, Text
from runtime.models.config import ModelConfig

HIDDEN: Final = -6e4
"""What is added to a score that does not count: its share is zero, and sums stay what they are; float16 has it too."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Keys and values, [L, 2, B, K, S, H], to which requests are bound; bfloat16 as integers of its bits."""

    slots: np.ndarray


class CallRows(NamedTuple):
    """Where the rows of one call go: slots `places` [B, T] from text `first` on; and an additive mask [B, T, S]."""

    buffer: Buffer
    first: int
    places: np.ndarray
    mask: np.ndarray


class GrowingMemory:
    """Buffers of some texts that advance together or apart; slots that were not written since they began hold zeros."""

    def __init__(self, config: ModelConfig, num_texts: int, dtype: np.dtype[Any]) -> None:
        self.config, self.num_texts, self.dtype = config, num_texts, dtype
        self._buffers: dict[int, Buffer] = {}
        self._num_slots = 0

    @property
    def buffer(self) -> Buffer:
        """The buffer in use."""
        return self._buffers[self._num_slots]

    @property
    def slots(self) -> np.ndarray:
        """See `Memory`."""
        return self.buffer.slots

    def start(self, num_slots: int) -> None:  # noqa: ARG002  memory grows with the sequence
        """See `Memory`."""
        self.restart()

    def start_random(self, num_slots: int) -> None:
        """See `Memory`."""
        self.restart(num_slots)
        own = np.random.default_rng(0).standard_normal((self.slots.shape[-1],), np.float32)
        self.slots[...] = memory_of(own.astype(self.dtype))

    def restart(self, num_slots: int = 0) -> None:
        """Begin again in the smallest buffer that has so many slots."""
        self._num_slots = slot_bucket(num_slots)
        clear(self._made(self._num_slots).slots)

    def reserve(self, num_slots: int, *, num_kept: int) -> None:
        """Have so many slots at least; another buffer is given the first `num_kept` of this one.

        Rows look at the buffer in use when they were asked for, so all memory of a pass is reserved before its first
        call.
        """
        size = slot_bucket(num_slots)
        if size <= self._num_slots:
            return
        before, after = self.slots, self._made(size).slots
        num_kept = min(num_kept, self._num_slots)
        after[..., :num_kept, :] = before[..., :num_kept, :]
        clear(after[..., num_kept:, :])
        self._num_slots = size

    def _made(self, size: int) -> Buffer:
        if size not in self._buffers:
            config = self.config
            shape = (config.num_layers, 2, self.num_texts, config.num_kv_heads, size, config.head_dim)
            self._buffers[size] = Buffer(memory_of(np.empty(shape, self.dtype)))
        return self._buffers[size]


def clear(slots: np.ndarray) -> None:
    """Write zeros: hidden slots have no share, but zero times what is no number is none, and nobody's text is left."""
    slots[...] = 0


class GrowingText(Text):
    """A sequence whose memory grows with it."""

    memory: GrowingMemory

    def reserve(self, num_rows: int) -> None:
        """Have slots for the next rows, however many calls they take."""
        self.memory.reserve(self.cursor + num_rows, num_kept=self.cursor)

    def rows(self, first: int, last: int, mask: NDArray[np.float32] | None) -> CallRows:
        """Some of the next rows, counted from the cursor: by an additive mask [T, cursor + T] or in text order."""
        buffer, stop = self.memory.buffer, self.cursor + last
        places = np.arange(self.cursor + first, stop)
        if mask is None:
            return CallRows(buffer, 0, places[None], _in_text_order(places[None], buffer))
        seen = np.full((last - first, buffer.slots.shape[-2]), HIDDEN, np.float32)
        seen[:, :stop] = np.maximum(mask, HIDDEN)
        return CallRows(buffer, 0, places[None], seen[None])


class GrowingBranches(Branches):
    """Implements `runtime.backends.backend.Branches`."""

    memory: GrowingMemory

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """Return where the next rows of some branches go: at these places in their sequences."""
        places = np.array(positions_RT)
        num_slots = int(places.max()) + 1
        self.memory.reserve(num_slots, num_kept=num_slots)
        buffer = self.memory.buffer
        return BranchRows(CallRows(buffer, branches.start or 0, places, _in_text_order(places, buffer)), places)


def scratch_rows(config: ModelConfig, num_texts: int, num_rows: int, num_slots: int, dtype: np.dtype[Any]) -> CallRows:
    """The first rows of texts that nobody reads: all layers write to the same memory."""
    one = memory_of(np.zeros((num_texts, config.num_kv_heads, num_slots, config.head_dim), dtype))
    buffer = Buffer(np.lib.stride_tricks.as_strided(one, (config.num_layers, 2, *one.shape), (0, 0, *one.strides)))
    places = np.tile(np.arange(num_rows), (num_texts, 1))
    return CallRows(buffer, 0, places, _in_text_order(places, buffer))


def _in_text_order(places_BT: np.ndarray, buffer: Buffer) -> np.ndarray:
    hidden = np.arange(buffer.slots.shape[-2]) > places_BT[..., None]
    return np.where(hidden, np.float32(HIDDEN), np.float32(0))
