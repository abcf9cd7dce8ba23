"""Which keys a row may see, prepared once per shape: building a mask can cost more than the step it serves.

Shapes: legend of `runtime.models.decoder`, plus R branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runtime.models.decoder import causal_mask
from runtime.models.kv_cache import KVCache

_PREFILL_ROWS = 512
"""Prompt rows per forward: enough to be bound by arithmetic, few enough for a small mask."""


def prefill_pieces(num_rows: int, dtype: torch.dtype) -> Iterator[tuple[int, int, Tensor]]:
    """A prompt in pieces: start, stop, and the mask [stop - start, stop] of each, made for this once."""
    for start in range(0, num_rows, _PREFILL_ROWS):
        stop = min(start + _PREFILL_ROWS, num_rows)
        yield start, stop, causal_mask(stop - start, dtype, context=start)


class CausalMasks:
    """Additive masks for a few rows after any context of up to `capacity` slots; slices of one table each."""

    def __init__(self, capacity: int, dtype: torch.dtype) -> None:
        self._capacity = capacity
        self._dtype = dtype
        self._tables: dict[int, Tensor] = {}

    def after(self, context: int, num_rows: int) -> Tensor | None:
        """Mask [T, context + T] of rows in text order; None for a single row, which sees everything."""
        if num_rows == 1:
            return None
        if num_rows not in self._tables:
            self._tables[num_rows] = causal_mask(num_rows, self._dtype, context=self._capacity)
        return self._tables[num_rows][:, self._capacity - context :]


def with_room(cache: KVCache, masks: CausalMasks, num_slots: int) -> tuple[KVCache, CausalMasks]:
    """A cache and its masks if they reach so far, else larger ones with nothing in them."""
    if cache.capacity >= num_slots:
        return cache, masks
    dtype = cache.keys.dtype
    return KVCache(cache.config, num_slots, dtype=dtype), CausalMasks(num_slots, dtype)


class TreeRows(NamedTuple):
    """The rows of a drafted tree: the last committed token, then its nodes in their order.

    Attributes:
        depths: of every row, 0 for the first [T].
        block: additive mask among the rows [T, T]: each sees itself and those on its path from the first.
    """

    depths: Tensor
    block: Tensor

    def mask(self, context: int) -> Tensor:
        """The mask [T, context + T] of these rows after a text of `context` slots."""
        return torch.cat([self.block.new_zeros(len(self.block), context), self.block], dim=1)


@lru_cache(maxsize=64)
def tree_rows(parents: tuple[int, ...], dtype: torch.dtype) -> TreeRows:
    """The rows of a tree (`Window.parents`); a static tree's are made once, a dynamic one's in every round."""
    num_rows = len(parents) + 1
    sees_TT = np.eye(num_rows, dtype=bool)
    depths = [0]
    for row, parent in enumerate(parents, 1):
        sees_TT[row] |= sees_TT[parent + 1]
        depths.append(depths[parent + 1] + 1)
    block = torch.zeros(num_rows, num_rows, dtype=dtype)
    return TreeRows(torch.tensor(depths), block.masked_fill_(torch.from_numpy(~sees_TT), -math.inf))


class TreeMask:
    """Additive mask of branches that share a text, end in it at rows of their own, and are blind to each other.

    Slots: the committed text, the window under verification, then the branches' rows in the order computed.
    """

    def __init__(
        self, *, num_committed: int, num_window: int, num_branches: int, num_tokens: int, dtype: torch.dtype
    ) -> None:
        """Args: slots of the text and of the window after it; branches at most, and slots of each; dtype."""
        self.base = num_committed + num_window
        self._num_committed = num_committed
        num_slots = self.base + num_branches * num_tokens
        self._mask_RS = torch.full((num_branches, num_slots), -math.inf, dtype=dtype)
        self._mask_RS[:, :num_committed] = 0.0
        self._own = torch.full((num_branches, num_branches), -math.inf, dtype=dtype).fill_diagonal_(0.0)
        self._num_branches = 0

    def add(self, rows: list[int]) -> None:
        """Add one branch per entry: it sees that many tokens of the window."""
        window = self._mask_RS[:, self._num_committed : self.base]
        for branch, row in enumerate(rows, self._num_branches):
            window[branch, :row] = 0.0
        self._num_branches += len(rows)

    def step(self, branches: list[int], cursor: int) -> Tensor:
        """Give each of `branches` its next slot, from `cursor` on; their mask [R, cursor + R]."""
        count = len(branches)
        # all of them is the rule, and then the rows are a slice
        rows = slice(0, count) if count == self._num_branches else torch.tensor(branches)
        self._mask_RS[rows, cursor : cursor + count] = self._own[:count, :count]
        return self._mask_RS[rows, : cursor + count]
