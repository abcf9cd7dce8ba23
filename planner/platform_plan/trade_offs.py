"""What one way to decode gives for another: money, energy, memory and devices next to time, and what nothing beats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final

from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.wording import counted, percent

OBJECTIVES: Final = ("tpot_s", "energy_j_per_token", "usd_per_million_tokens")
"""What a token should take little of; a number that nobody knows counts as the largest."""
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "usd_per_million_tokens": ("cheaper", "dearer"),
    "energy_j_per_token": ("less energy", "more energy"),
    "memory_bytes": ("less memory", "more memory"),
}
_SMALLEST: Final = 0.05
"""Smallest share by which two differ that is named."""


def pareto(ranking: Sequence[PlannedSchedule]) -> list[PlannedSchedule]:
    """Return those that can be run as they are and than which nothing is better in one and as good in all, by time.

    Of several that are equal in all the first is there.
    """
    front: list[tuple[tuple[float, ...], PlannedSchedule]] = []
    for costs, one in sorted(((_costs(one), one) for one in ranking if not one.needs_training), key=lambda one: one[0]):
        if not any(_as_good(other, costs) for other, _ in front):  # in this order a later one beats no earlier one
            front.append((costs, one))
    return [one for _, one in front]


def differences(one: PlannedSchedule, other: PlannedSchedule) -> Iterator[str]:
    """Say what `one` takes less or more of than the other, time left out: `30 % cheaper`."""
    for name, (less, more) in _WORDS.items():
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours is not None and theirs and abs(share := ours / theirs - 1) >= _SMALLEST:
            yield f"{percent(abs(share))} {less if share < 0 else more}"
    if fewer := other.num_devices - one.num_devices:
        yield f"{counted(abs(fewer), 'device')} {'less' if fewer > 0 else 'more'}"


def saves(one: PlannedSchedule, other: PlannedSchedule) -> bool:
    """Whether `one` takes less of anything but time, and not more money or energy."""
    words = list(differences(one, other))
    return any("less" in word or "cheaper" in word for word in words) and not any(
        word.endswith(("dearer", "more energy")) for word in words
    )


def _costs(one: PlannedSchedule) -> tuple[float, ...]:
    return tuple(inf if (value := getattr(one, name)) is None else value for name in OBJECTIVES)


def _as_good(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(ours <= theirs for ours, theirs in zip(one, other, strict=True))
