"""Which static shapes there are: a graph serves whatever is not larger.

A graph is compiled for one number of rows and one of slots, and holds the weights packed for its rows: so there are
few. A sequence names the numbers of rows that its windows have (`runtime.backends.backend.Plan`), which are served as
they are up to 9: on CPUs each further row costs some percent of a step. Slots double, for attention over empty slots
costs little next to the weights, and begin with so many that short texts never change their size, nor anchors next to
them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

_ROWS: Final = (*range(1, 10), 12, 16, 24, 32, 48, 64, 96, 128)
_LEAST_SLOTS: Final = 256
_SMALL: Final = 16
PROMPT_ROWS: Final = (16, 64)
"""Rows of a prompt in one call, beyond those of windows."""


def row_bucket(num_rows: int) -> int:
    """Rows of the graph that serves so many: from 129 on a multiple of 64."""
    return _ROWS[bisect_left(_ROWS, num_rows)] if num_rows <= _ROWS[-1] else num_rows + -num_rows % 64


def slot_bucket(num_slots: int) -> int:
    """Slots of the graph that serves so many, and one more: the last one takes the keys of rows that fill up."""
    return max(_LEAST_SLOTS, 1 << num_slots.bit_length())


def slot_buckets(num_slots: int) -> tuple[int, ...]:
    """All that a text passes through until it needs so many slots."""
    last, sizes = slot_bucket(num_slots), [_LEAST_SLOTS]
    while sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def pieces(num_rows: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Start and stop of calls over rows of a text, by the numbers of rows that there are graphs for.

    One call where a graph is at least half full, or small; else as many rows as fill one.
    """
    start, ascending = 0, sorted(sizes)
    while start < num_rows:
        left = num_rows - start
        whole = next((size for size in ascending if size >= left), None)
        full = max((size for size in ascending if size < left), default=left)
        is_cut = whole is None or (whole > _SMALL and 2 * left <= whole)
        stop = start + full if is_cut else num_rows
        yield start, stop
        start = stop
