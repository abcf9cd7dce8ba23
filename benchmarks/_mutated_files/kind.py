"""A kind of file that is read: how a sound example is made, and what the product does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file.

    Attributes:
        make: writes a sound example into a folder and returns the files to be damaged.
        read: what the product does with it; returns the numbers of its answer.
        is_slow: whether a case takes more than a few milliseconds.
    """

    make: Callable[[Path], list[str]]
    read: Callable[[Path], Iterable[float]]
    is_slow: bool = False
