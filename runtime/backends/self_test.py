"""Whether a back end says the same of a row in any company: the start-up test of exact text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, concatenated, inference
from runtime.backends.backend import Backend, Plan, segments_between

_PROMPT: Final = 57
"""Rows read before: those after them reach into the next block of keys (`runtime.models.attention.KEYS_AT_ONCE`)."""


@inference
def is_row_invariant(backend: Backend) -> bool:
    """Whether logits of a random text are the same to the last bit, read row by row and in chunks of several sizes."""
    one_by_one, *others = backend.self_test_chunks
    num_rows, whole = _PROMPT + len(one_by_one), segments_between(backend.config.num_layers)
    sizes = tuple({size for chunks in backend.self_test_chunks for size in chunks})
    backend.prepare(Plan(num_slots=num_rows, num_prompt=_PROMPT, rows=sizes, segments=whole, prompt_segments=whole))
    ids = np.random.default_rng(0).integers(backend.config.vocab_size, size=num_rows)
    expected = _read(backend, ids, one_by_one)
    return all(bool((_read(backend, ids, chunks) == expected).all()) for chunks in others)


def _read(backend: Backend, ids: NDArray[np.int64], chunks: Sequence[int]) -> Array:
    """Logits [T, V] of a text after its prompt, read in these chunks."""
    text = backend.new_text()
    text.start(len(ids))
    found = []
    for count in (_PROMPT, *chunks):
        stop = text.cursor + count
        positions = np.arange(text.cursor, stop)
        x_BTD = backend.embedding(ids[None, text.cursor : stop])
        x_BTD = backend.run_layers(x_BTD, 0, backend.config.num_layers, positions=positions, cache=text)
        if text.cursor:
            found.append(backend.logits(x_BTD)[0])
        text.advance(count)
    return concatenated(found)
