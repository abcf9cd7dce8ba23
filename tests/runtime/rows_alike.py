"""Prints for every back end and form whether its self-test calls rows alike, and whether other chunks say so too.

Run as a program, since instructions are chosen once in a process: `python -m tests.runtime.rows_alike`, or with `torch`
for that back end alone.
"""

import json
import random
import sys

import numpy as np
import torch

from runtime.backends.eager import EagerBackend
from runtime.backends.self_test import is_row_invariant
from tests.runtime.reading import compiled, prepare, read
from tests.tiny_models import VOCAB_SIZE, tiny_target

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "max_position": 600}
NO_TILES = {"hidden_size": 200, "intermediate_size": 520, "head_dim": 50, "max_position": 600}
"""Inputs that are no multiple of a tile's."""
PROMPT, NUM_ROWS = 217, 40
"""Rows after the prompt cross the edge of a CPU's first buffer (223 KV positions) and one of keys (256)."""


def new_backends():
    """All forms of both back ends, by name."""
    for dtype in (torch.float32, torch.bfloat16):
        yield f"torch {dtype}".replace("torch.", ""), lambda dtype=dtype: EagerBackend(tiny_target(**SIZES).to(dtype))
    for form in ("float32", "bfloat16", "int8", "int4"):
        yield (f"graphs {form}", lambda form=form: compiled(tiny_target(**SIZES), form))
    yield "graphs without whole tiles", lambda: compiled(tiny_target(**NO_TILES), "bfloat16")


def rows_in(backend, chunks):
    """Logits [T, V] after a prompt, read in these chunks."""
    ids = np.random.default_rng(7).integers(VOCAB_SIZE, size=PROMPT + NUM_ROWS)
    return read(backend, (PROMPT, *chunks), ids=ids)[PROMPT:]


def random_chunks():
    """Chunks of 1 to 9 rows."""
    draw, chunks = random.Random(3), []
    while sum(chunks) < NUM_ROWS:
        chunks.append(min(draw.randint(1, 9), NUM_ROWS - sum(chunks)))
    return chunks


def main():
    """Print it as JSON."""
    found = {}
    for name, new_backend in new_backends():
        if not name.startswith(tuple(sys.argv[1:]) or ""):
            continue
        backend = new_backend()
        says = is_row_invariant(backend)
        prepare(backend, num_slots=PROMPT + NUM_ROWS, num_prompt=PROMPT, rows=(1, 4, 9))
        expected = rows_in(backend, [1] * NUM_ROWS)
        is_so = all(
            bool((rows_in(backend, chunks) == expected).all())
            for chunks in (random_chunks(), [8] * 5, [4, 9] * 3 + [1])
        )
        found[name] = {"says": says, "is_so": is_so}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
