"""All numbers of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def numbers(value: object) -> Iterable[float]:
    """Return every number in a nested answer."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []
