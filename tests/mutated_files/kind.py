"""A kind of file that is read: how a sound example is made, and what the product does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """`make` writes a sound example and returns the files to be damaged; `read` returns the numbers of an answer."""

    make: Callable[[Path], list[str]]
    read: Callable[[Path], Iterable[float]]
    is_slow: bool = False


def numbers(value: object) -> Iterable[float]:
    """Return every number in a nested answer."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []
