"""When a process collects garbage, kept out of what is timed, and when it gives freed memory back.

A collection looks at every object: after importing torch that takes as long as some passes of a small target.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def leave_imports_alone() -> None:
    """Let no collection look again at what has been imported: it stays as long as the process."""
    gc.collect()
    gc.freeze()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect nothing meanwhile; what is freed at once, which is nearly everything, is freed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def give_back_freed() -> None:
    """Have the C library give back what was freed, where it can be asked to: glibc keeps it between smaller blocks."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
