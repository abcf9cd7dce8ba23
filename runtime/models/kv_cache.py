"""A static key/value cache: written at a cursor that is a number to move, gathered by slot.

Slots are rows of memory; positions are places in the text. They differ as soon as several branches share a
prefix, so the cache knows slots only and the caller passes positions to the decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.models.attention import (
    KEYS_AT_ONCE,
    LayerKeys,
    Piece,
    Sight,
    keys_seen,
    mask_for_groups,
    with_all_keys,
)
from runtime.models.config import ModelConfig
from runtime.models.decoder import causal_mask


class KVCache(LayerKeys):
    """Keys and values of one sequence for every layer, or of several that advance together.

    Shapes: [layers, B, K, capacity, H]. `cursor` is the first slot that the next call writes; what the slots from
    it on hold is garbage by definition, but finite: rows see some of it masked.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: str = "cpu",
        num_sequences: int = 1,
    ) -> None:
        shape = (config.num_layers, num_sequences, config.num_kv_heads, _whole(capacity), config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.cursor = 0
        self._text_order = torch.zeros(0, 0)

    def start(self, num_slots: int) -> None:
        """Begin a text that needs so many slots: the memory there is serves if it is enough."""
        if self.capacity < num_slots:
            shape = (*self.keys.shape[:3], _whole(num_slots), self.keys.shape[4])
            self.keys, self.values = self.keys.new_empty(shape), self.values.new_empty(shape)
        self._clear()
        self.cursor = 0

    @torch.inference_mode()
    def _clear(self) -> None:
        """Write zeros: hidden slots have no share, but zero times what is no number is none."""
        self.keys.zero_()
        self.values.zero_()

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:
        """Return what the next rows see by a mask over the slots up to them [.., T, cursor + T]; None is causal.

        A row never sees a slot after its own, and that settles how many it is computed over (`keys_seen`).
        """
        pieces, start = list[Piece](), 0
        while start < num_rows:
            num_keys = keys_seen(self.cursor + start)
            stop = min(num_keys - self.cursor, num_rows)
            part = self._in_text_order(start, stop, num_keys) if mask is None else mask[..., start:stop, :]
            part = mask_for_groups(with_all_keys(part, num_keys), num_queries_per_kv)
            pieces.append(Piece(slice(start, stop), num_keys, part))
            start = stop
        return tuple(pieces)

    def _in_text_order(self, start: int, stop: int, num_keys: int) -> Tensor:
        """Mask [stop - start, num_keys] of some of the next rows, all in the last `KEYS_AT_ONCE` of these slots.

        Part of a table made once: making a mask can cost more than the step it serves.
        """
        if self._text_order.shape[-1] != self.capacity:
            table = causal_mask(KEYS_AT_ONCE, self.keys.dtype, context=self.capacity - KEYS_AT_ONCE)
            self._text_order = table.to(self.keys.device)
        first = self.cursor - (num_keys - KEYS_AT_ONCE)
        return self._text_order[first + start : first + stop, self.capacity - num_keys :]

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return self.keys.shape[3]

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows of this call at the cursor; return all slots, [B, K, capacity, H] each.

        The cursor does not move: all layers of one forward write the same slots (see `advance`).
        """
        keys, values, num_rows = self.keys[layer], self.values[layer], k_BKTH.shape[2]
        keys.narrow(2, self.cursor, num_rows).copy_(k_BKTH)
        values.narrow(2, self.cursor, num_rows).copy_(v_BKTH)
        return keys, values

    def advance(self, num_rows: int) -> None:
        """Keep the rows just written.

        Raises:
            ValueError: the cache is full.
        """
        self.set_length(self.cursor + num_rows)

    def set_length(self, length: int) -> None:
        """Keep the first `length` slots, written last or long ago, and forget the others: a number, not a copy.

        Raises:
            ValueError: there are not so many.
        """
        if not 0 <= length <= self.capacity:
            raise ValueError(f"length {length} is outside the cache's 0..{self.capacity}")
        self.cursor = length

    @torch.inference_mode()
    def fill_random(self, length: int) -> None:
        """Random keys and values, the same in every slot, `length` of them to be seen: a text to time a step after.

        All are written: untouched memory is read from one shared page of zeros and would time too fast.
        """
        for cache in (self.keys, self.values):
            cache.copy_(torch.randn(cache.shape[-1], generator=torch.Generator().manual_seed(0)))
        self.set_length(length)

    @torch.inference_mode()
    def gather(self, slots: list[int], destination: int) -> None:
        """Move the given slots to `destination`, `destination` + 1, ... and put the cursor after them."""
        stop = destination + len(slots)
        if slots != list(range(destination, stop)):
            index = torch.tensor(slots)
            self.keys[:, :, :, destination:stop] = self.keys.index_select(3, index)
            self.values[:, :, :, destination:stop] = self.values.index_select(3, index)
        self.set_length(stop)


def _whole(num_slots: int) -> int:
    """Slots as rows see them (`KEYS_AT_ONCE`)."""
    return num_slots + -num_slots % KEYS_AT_ONCE
