"""When Python may collect garbage: a collection takes as long as some passes of a small target."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch garbage collection off in the body; the end of an older CUDA graph would also spoil a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_imports_alone() -> None:
    """Exclude all that is imported from garbage collection: it stays as long as the process."""
    gc.collect()
    gc.freeze()
