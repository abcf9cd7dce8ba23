"""A static key/value cache: written at a cursor that is a number to move, gathered by slot.

Slots are rows of memory; positions are places in the text. They differ as soon as several branches share a
prefix, so the cache knows slots only and the caller passes positions to the decoder.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from runtime.models.config import ModelConfig


class LayerKeys(Protocol):
    """What a layer needs of a cache."""

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor, /) -> tuple[Tensor, Tensor]:
        """Take the keys and values of this call's rows; return all that the rows may see, [B, K, S, H] each."""
        ...


class KVCache:
    """Keys and values of one sequence for every layer; implements `LayerKeys`.

    Shapes: [layers, 1, K, capacity, H]. `cursor` is the first slot that the next call writes; what the slots from
    it on hold is garbage by definition.
    """

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: torch.dtype, device: str = "cpu") -> None:
        self.config = config
        shape = (config.num_layers, 1, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.cursor = 0

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
