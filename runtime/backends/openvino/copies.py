"""Which calls of open graphs have a copy of the graph for themselves, and what copies take of memory.

A call of another size than the last has to be laid out again, layer by layer, whatever their weights. That takes a good
part of a small decoder's pass and little of a large one's; a copy takes the weights once more, which is little for a
small one. So a small decoder has a copy for every size, a middling one for single rows, which plain decoding, anchors
and prompt lookup without a match have in turn with windows, and a large one none.
"""

from __future__ import annotations

from typing import Final

Size = tuple[int, int]
"""Texts, and rows of each."""

SINGLE_ROW: Final[Size] = (1, 1)
COPIES_BYTES: Final = 512_000_000
"""Of weights that copies may hold besides the first."""
_SMALL: Final = 8
"""A decoder of which so many copies fit is a small one."""


def own_size(size: Size, num_bytes: int) -> Size | None:
    """The size, if its calls have a copy in a decoder of so many bytes; None if they share a graph with all others."""
    return size if COPIES_BYTES // num_bytes >= (1 if size == SINGLE_ROW else _SMALL) else None


def copies_bytes(num_bytes: int) -> int:
    """Bytes that copies of a decoder of so many bytes take at most."""
    if COPIES_BYTES // num_bytes >= _SMALL:
        return COPIES_BYTES
    return num_bytes if num_bytes <= COPIES_BYTES else 0
