"""A static key/value cache: written at a cursor that is a number to move, gathered by slot.

Slots are rows of memory; positions are places in the text. They differ as soon as several branches share a
prefix, so the cache knows slots only and the caller passes positions to the decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.models.config import ModelConfig
from runtime.models.decoder import causal_mask


class KVCache:
    """Keys and values of one sequence for every layer; implements `runtime.models.decoder.LayerKeys`.

    Shapes: [layers, 1, K, capacity, H]. `cursor` is the first slot that the next call writes; what the slots from
    it on hold is garbage by definition.
    """

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        shape = (config.num_layers, 1, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.cursor = 0
        self._masks: dict[int, Tensor] = {}

    def start(self, num_slots: int) -> None:
        """Begin a text that needs so many slots: the memory there is serves if it is enough."""
        if self.capacity < num_slots:
            shape = (*self.keys.shape[:3], num_slots, self.keys.shape[4])
            self.keys, self.values, self._masks = self.keys.new_zeros(shape), self.values.new_zeros(shape), {}
        self.cursor = 0

    def mask(self, num_rows: int) -> Tensor | None:
        """Additive mask [T, cursor + T] of the next rows, in text order; None for one row, which sees everything.

        A slice of a table made once for each number of rows: making a mask can cost more than the step it serves.
        """
        if num_rows == 1:
            return None
        if num_rows not in self._masks:
            self._masks[num_rows] = causal_mask(num_rows, self.keys.dtype, context=self.capacity)
        return self._masks[num_rows][:, self.capacity - self.cursor :]

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return self.keys.shape[3]

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows of this call at the cursor; return every slot up to them, [1, K, S, H] each.

        The cursor does not move: all layers of one forward write the same slots (see `advance`).
        """
        stop = self.cursor + k_BKTH.shape[2]
        self.keys[layer, :, :, self.cursor : stop] = k_BKTH
        self.values[layer, :, :, self.cursor : stop] = v_BKTH
        return self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]

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
        """Random keys and values in every slot, `length` of them to be seen: a text to time a step after.

        All are written: untouched memory is read from one shared page of zeros and would time too fast.
        """
        self.keys.normal_()
        self.values.normal_()
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
