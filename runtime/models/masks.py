"""Which keys a row may see, where that is not all of a text so far (`runtime.models.kv_cache.KVCache.mask`).

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

_PREFILL_ROWS = 512
"""Prompt rows per forward: enough to be bound by arithmetic, few enough for a small mask."""


def prefill_pieces(num_rows: int, dtype: torch.dtype) -> Iterator[tuple[int, int, Tensor]]:
    """A prompt in pieces: start, stop, and the mask [stop - start, stop] of each, made for this once."""
    for start in range(0, num_rows, _PREFILL_ROWS):
        stop = min(start + _PREFILL_ROWS, num_rows)
        yield start, stop, causal_mask(stop - start, dtype, context=start)


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
