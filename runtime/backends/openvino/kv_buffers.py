"""KV caches of a text and of its branches, in the memory that graphs read and write.

A buffer holds keys and values of all layers for one number of slots. On some CPUs sums over more than 1,024 slots are
split differently for each number of slots (OpenVINO 2026.4). So a row must run in the buffer that plain decoding has at
its position, and a window across the end of such a buffer takes two calls, each of which reads all weights. With up to
1,024 slots all buffers give the same bits (`self_test` compares the first two), and such a window takes one call.
Shapes: legend of `runtime.models.decoder`; L layers, S slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.backends.kv_memory import BranchCaches, BranchRows, SequenceCache
from runtime.backends.lane_device import Device
from runtime.backends.openvino.packing import memory_of
from runtime.models.config import ModelConfig

HIDDEN: Final = -6e4
"""What is added to masked scores: low enough for weights of zero, and within the range of float16."""
SUMMED_ALIKE: Final = 1024
"""Number of slots up to which a CPU sums in the same order in every buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Keys and values, [L, 2, B, K, S, H], to which requests are bound; bfloat16 is viewed as int16."""

    slots: np.ndarray


class CallRows(NamedTuple):
    """The slots `places` [B, T] of a call's rows in the texts from `first` on, and an additive mask [B, T, S]."""

    buffer: Buffer
    first: int
    places: np.ndarray
    mask: np.ndarray


class GrowingMemory:
    """The buffers of one or several texts, one of which is in use; slots that were not written yet hold zeros.

    `_num_valid` is, for each buffer used so far, the number of its first slots that equal those of the one in use.
    """

    def __init__(self, config: ModelConfig, num_texts: int, dtype: np.dtype[Any], device: Device) -> None:
        self.config, self.num_texts, self.dtype = config, num_texts, dtype
        self.num_slots, self.spare_slots = device.num_slots, device.spare_slots
        self.summed_alike = SUMMED_ALIKE if device.has_dynamic_shapes else 0
        self._buffers: dict[int, Buffer] = {}
        self._num_slots = 0
        self._num_valid: dict[int, int] = {}

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
        vector_H = np.random.default_rng(0).standard_normal((self.slots.shape[-1],), np.float32)
        self.slots[...] = memory_of(vector_H.astype(self.dtype))

    def restart(self, num_slots: int = 0) -> None:
        """Begin again in the smallest buffer of at least `num_slots` slots."""
        self._num_slots = self.num_slots(num_slots)
        clear(self._made(self._num_slots).slots)
        self._num_valid = {self._num_slots: 0}

    def reserve(self, num_slots: int, *, num_kept: int) -> None:
        """Use a buffer of at least `num_slots` slots, copying the first `num_kept` if it is another one."""
        self._use(max(self._num_slots, self.num_slots(num_slots)), num_kept)

    def use(self, num_slots: int, *, num_kept: int) -> None:
        """Use the smallest buffer of at least `num_slots` slots, with the first `num_kept`; others are written next."""
        self._use(self.num_slots(num_slots), num_kept)

    def _use(self, size: int, num_kept: int) -> None:
        self._num_valid = {other: min(valid, num_kept) for other, valid in self._num_valid.items()}
        if size == self._num_slots:
            return
        before, after, num_kept = self.slots, self._made(size).slots, min(num_kept, self._num_slots)
        first = self._num_valid.get(size, 0)
        after[..., first:num_kept, :] = before[..., first:num_kept, :]
        if size not in self._num_valid:
            clear(after[..., num_kept:, :])
        self._num_valid |= {self._num_slots: num_kept, size: num_kept}
        self._num_slots = size

    def _made(self, size: int) -> Buffer:
        if size not in self._buffers:
            config = self.config
            shape = (config.num_layers, 2, self.num_texts, config.num_kv_heads, size, config.head_dim)
            self._buffers[size] = Buffer(memory_of(np.empty(shape, self.dtype)))
        return self._buffers[size]


def clear(slots: np.ndarray) -> None:
    """Write zeros: a masked slot has weight zero, but zero times NaN is NaN, and no other request's text may remain."""
    slots[...] = 0


class GrowingCache(SequenceCache):
    """A sequence whose memory grows with it."""

    memory: GrowingMemory

    def parts(self, positions: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield start and stop, counted from the cursor, of the next rows that run in the same buffer."""
        start, memory = 0, self.memory
        for _, rows in groupby(positions, lambda position: max(memory.num_slots(position + 1), memory.summed_alike)):
            stop = start + len(list(rows))
            yield start, stop
            start = stop

    def rows(self, first: int, positions: Sequence[int], mask: NDArray[np.float32] | None) -> CallRows:
        """Return the slots and the mask for the next rows from `first` on, which must lie in one of `parts`.

        They must be written before others. They see each other in text order, or by an additive mask [T, cursor + first
        + T].
        """
        start, num_rows = self.cursor + first, len(positions)
        # a tree that does not fit into its buffer uses the next one
        self.memory.use(max(positions[0] + 1, start + num_rows + 1 - self.memory.spare_slots), num_kept=start)
        buffer, places = self.memory.buffer, np.arange(start, start + num_rows)
        if mask is None:
            return CallRows(buffer, 0, places[None], _in_text_order(places[None], buffer))
        seen = np.full((num_rows, buffer.slots.shape[-2]), HIDDEN, np.float32)
        seen[:, : start + num_rows] = np.maximum(mask, HIDDEN)
        return CallRows(buffer, 0, places[None], seen[None])


class GrowingBranches(BranchCaches):
    """Implements `runtime.backends.kv_memory.BranchCaches`; a call runs in the buffer of its longest branch.

    Beyond 1,024 slots the rows of a shorter branch may not have the bits of plain decoding (`most_branched_positions`).
    """

    memory: GrowingMemory

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """Return the slots and masks for the next rows of some branches, at these positions."""
        places = np.array(positions_RT)
        num_slots = int(places.max()) + 1
        self.memory.reserve(num_slots, num_kept=num_slots)
        buffer = self.memory.buffer
        return BranchRows(CallRows(buffer, branches.start or 0, places, _in_text_order(places, buffer)), places)


def scratch_rows(config: ModelConfig, num_texts: int, num_rows: int, num_slots: int, dtype: np.dtype[Any]) -> CallRows:
    """Return the first rows of texts for a call whose results are discarded: all layers share the same memory."""
    layer = memory_of(np.zeros((num_texts, config.num_kv_heads, num_slots, config.head_dim), dtype))
    shape, strides = (config.num_layers, 2, *layer.shape), (0, 0, *layer.strides)
    buffer = Buffer(np.lib.stride_tricks.as_strided(layer, shape, strides))
    places = np.tile(np.arange(num_rows), (num_texts, 1))
    return CallRows(buffer, 0, places, _in_text_order(places, buffer))


def _in_text_order(places_BT: np.ndarray, buffer: Buffer) -> np.ndarray:
    hidden = np.arange(buffer.slots.shape[-2]) > places_BT[..., None]
    return np.where(hidden, np.float32(HIDDEN), np.float32(0))
