"""The first entry of each kind in a ranking."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def first_of_each(ranking: Iterable[T], kind: Callable[[T], object]) -> list[T]:
    """Return the first entry of every kind, in the order of the ranking."""
    found: dict[object, T] = {}
    for one in ranking:
        found.setdefault(kind(one), one)
    return list(found.values())
