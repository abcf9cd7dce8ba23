"""Which static shapes a graph may have: rows of a call, texts of a call, and slots that it looks at.

How many slots a row sees is settled by its own slot alone, so that its sums pair up in the same way in any call; rows
of one call on both sides of a limit go apart. A call has so many spare slots that rows which fill it up write after
the text, into slots that are garbage anyway.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

ROWS: Final = (8, 16, 32, 64, 128)
"""Rows of one text in a call: as long as weights bound a step, 8 rows cost what 1 does."""
TEXTS: Final = (1, 2, 4, 8, 16, 32, 64)
SPARE: Final = ROWS[-1]
"""Slots after the last row of a call that are there to be written."""
_LEAST_SLOTS: Final = 256


def row_bucket(num_rows: int) -> int:
    """Rows of the call that serves so many, which are at most `ROWS[-1]`."""
    return ROWS[bisect_left(ROWS, num_rows)]


def text_bucket(num_texts: int) -> int:
    """Texts of the call that serves so many: beyond the largest size a multiple of it."""
    most = TEXTS[-1]
    return TEXTS[bisect_left(TEXTS, num_texts)] if num_texts <= most else num_texts + -num_texts % most


def slot_bucket(num_slots: int) -> int:
    """Slots that a text of so many has, or its last row looks at: 256, 384, 512, 768, 1024, ..."""
    size = _LEAST_SLOTS
    while size < num_slots + SPARE:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def slot_buckets(num_slots: int) -> tuple[int, ...]:
    """All that a text passes through until it has so many slots."""
    sizes = [slot_bucket(0)]
    while sizes[-1] < slot_bucket(num_slots):
        sizes.append(slot_bucket(sizes[-1] - SPARE + 1))
    return tuple(sizes)


def pieces(first: int, num_rows: int) -> Iterator[tuple[int, int]]:
    """Start and stop of calls over rows of a text in its order, whose first goes to slot `first`."""
    start = 0
    while start < num_rows:
        seen = slot_bucket(first + start + 1)
        stop = min(num_rows, start + ROWS[-1], seen - SPARE - first)
        yield start, stop
        start = stop
