"""From how many rows on a row's bits do not depend on their number.

Matrix products of few rows may take kernels of their own, by their sizes, the form of the weights and the processor:
int8 products whose inputs are rounded in groups of 32 were alike at every number of rows, others differ below 5, and
so may attention where few heads share a key. So a probe asks the device once, with one layer of the very model and its
head, and calls are filled up to what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

PROBED_ROWS: Final = (1, 2, 3, 4, 5, 8, 16, 32, 64)


def row_floor(read: Callable[[int], NDArray[np.float32]]) -> int:
    """The fewest rows that calls should have; 1 where no number of rows but the most that were probed is alike.

    Args:
        read: what the same rows of a text come out as, read by calls of so many; the first ones are enough.
    """
    most = PROBED_ROWS[-1]
    expected, floor = read(most), most
    for count in reversed(PROBED_ROWS[:-1]):
        found = read(count)
        if not np.array_equal(found, expected[:, : found.shape[1]]):
            break
        floor = count
    return floor if floor < most else 1
