"""Keeps Python's garbage collection, which takes as long as several passes of a small target, out of decoding."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch garbage collection off in the body; collecting an old CUDA graph would also break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_imports_alone() -> None:
    """Exclude all objects so far from garbage collection: they are mostly imported modules, which stay anyway."""
    gc.collect()
    gc.freeze()
