"""Masks of rows that do not see all tokens before them. Shapes: legend of `runtime.models.decoder`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PREFILL_ROWS = 512
"""Prompt rows per forward: enough to be bound by arithmetic, few enough for little memory."""


def prefill_pieces(num_rows: int) -> Iterator[tuple[int, int]]:
    """A prompt in pieces: start and stop of each."""
    for start in range(0, num_rows, _PREFILL_ROWS):
        yield start, min(start + _PREFILL_ROWS, num_rows)


class TreeRows(NamedTuple):
    """Depths [T] of a drafted tree's rows, the last committed token first, and the additive mask among them [T, T].

    A node's keys lie in slots of the tree's order, not where they would in the text, so sums pair up otherwise than in
    plain decoding: alone of all windows, trees are not exact to the last bit (`benchmarks/exactness.py` counts).
    """

    depths: NDArray[np.int64]
    block: NDArray[np.float32]

    def mask(self, context: int) -> NDArray[np.float32]:
        """The mask [T, context + T] of these rows after a text of `context` slots."""
        return np.concatenate([np.zeros((len(self.block), context), np.float32), self.block], axis=1)


@lru_cache(maxsize=64)
def tree_rows(parents: tuple[int, ...]) -> TreeRows:
    """The rows of a tree (`Window.parents`); a static tree's are made once, a dynamic one's in every round."""
    num_rows = len(parents) + 1
    sees_TT = np.eye(num_rows, dtype=bool)
    depths = [0]
    for row, parent in enumerate(parents, 1):
        sees_TT[row] |= sees_TT[parent + 1]
        depths.append(depths[parent + 1] + 1)
    return TreeRows(np.array(depths), np.where(sees_TT, np.float32(0), np.float32(-math.inf)))
