"""The first entry of each kind in a ranking."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def first_of_each(ranking: Iterable[T], kind: Callable[[T], object]) -> list[T]:
    """Return the first of every kind, in their order."""
    found: dict[object, T] = {}
    for one in ranking:
        found.setdefault(kind(one), one)
    return list(found.values())
