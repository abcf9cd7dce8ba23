"""Self-tests of batch invariance: whether a row has the same bits in any call, and from how many rows on.

Products of few rows may use other kernels, depending on sizes, weight format and processor. So one layer and the head
of the loaded model are probed once, and calls are padded to the number of rows found.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, concatenated, inference
from runtime.backends.backend import Backend, Preparation, segments_between
from runtime.backends.kv_memory import SequenceCache

_READ: Final = 57
"""Rows read first, so that the rows after them reach into the next block of keys (`row_invariance.KEYS_AT_ONCE`)."""


@inference
def is_row_invariant(backend: Backend) -> bool:
    """Return whether the logits of a random text have the same bits, read row by row or in chunks of other sizes."""
    one_by_one, *others = backend.self_test_chunks
    num_rows, whole = sum(one_by_one), segments_between(backend.config.num_layers)
    num_slots = max(_READ + num_rows, min(max(backend.self_test_fills) + num_rows, backend.config.max_position))
    sizes = tuple({size for chunks in backend.self_test_chunks for size in chunks})
    backend.prepare(
        Preparation(num_slots=num_slots, num_prompt=_READ, rows=sizes, segments=whole, prompt_segments=whole)
    )
    ids = np.random.default_rng(0).integers(backend.config.vocab_size, size=_READ + num_rows)

    def is_same(num_filled: int) -> bool:
        """Return whether the logits of rows after filled slots (0: a prompt) are equal, read in all ways."""
        text = backend.new_text()
        text.start(num_slots)
        if num_filled:
            text.fill_random(num_filled)
        else:
            _logits(backend, text, ids[:_READ])
        start = text.cursor

        def read(chunks: Sequence[int]) -> Array:
            text.set_length(start)
            last = np.cumsum(chunks) + _READ
            return concatenated(
                [_logits(backend, text, ids[stop - size : stop]) for size, stop in zip(chunks, last, strict=True)]
            )

        expected = read(one_by_one)
        return all(bool((read(chunks) == expected).all()) for chunks in others)

    return is_same(0) and all(is_same(fill) for fill in backend.self_test_fills if fill + num_rows <= num_slots)


def _logits(backend: Backend, text: SequenceCache, ids: NDArray[np.int64]) -> Array:
    positions = np.arange(text.cursor, text.cursor + len(ids)) % backend.config.max_position
    x_BTD = backend.embedding(ids[None])
    x_BTD = backend.run_layers(x_BTD, 0, backend.config.num_layers, positions=positions, cache=text)
    text.advance(len(ids))
    return backend.logits(x_BTD)[0]


PROBED_ROWS: Final = (1, 2, 3, 4, 5, 8, 16, 32, 64)


def row_floor(read: Callable[[int], NDArray[np.float32]]) -> int:
    """Return the fewest rows that calls need for batch invariance; 1 if no padding up to the most probed rows helps.

    `read(count)` returns the states of the first rows of a text, read by calls of `count` rows.
    """
    most = PROBED_ROWS[-1]
    expected, floor = read(most), most
    for count in reversed(PROBED_ROWS[:-1]):
        found = read(count)
        if not np.array_equal(found, expected[:, : found.shape[1]]):
            break
        floor = count
    return floor if floor < most else 1
