"""Schedules compared by more than time: money, energy, memory and devices, and the Pareto front."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter, le
from typing import Final

from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.wording import counted, percent

OBJECTIVES: Final = ("tpot_s", "energy_j_per_token", "usd_per_million_tokens")
"""What a token should take little of; a number that is not known counts as infinite."""
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "usd_per_million_tokens": ("cheaper", "more expensive"),
    "energy_j_per_token": ("less energy", "more energy"),
    "memory_bytes": ("less memory", "more memory"),
}
_SMALLEST: Final = 0.05
"""Smaller differences are not named."""


def pareto(ranking: Sequence[PlannedSchedule]) -> list[PlannedSchedule]:
    """Return the Pareto front of `OBJECTIVES` among schedules that need no training, by time, of equals the first."""

    def costs_of(one: PlannedSchedule) -> list[float]:
        return [inf if (value := getattr(one, name)) is None else value for name in OBJECTIVES]

    front: list[tuple[list[float], PlannedSchedule]] = []
    for costs, one in sorted(((costs_of(one), one) for one in ranking if not one.needs_training), key=itemgetter(0)):
        # in this order a later one beats no earlier one
        if not any(all(map(le, other, costs)) for other, _ in front):
            front.append((costs, one))
    return [one for _, one in front]


def _shares(one: PlannedSchedule, other: PlannedSchedule) -> dict[str, float]:
    """Return by how much of the other's `one` takes more, or less (below zero), where that is worth naming."""
    both = {name: (getattr(one, name), getattr(other, name)) for name in _WORDS}
    shares = {name: ours / theirs - 1 for name, (ours, theirs) in both.items() if ours is not None and theirs}
    return {name: share for name, share in shares.items() if abs(share) >= _SMALLEST}


def differences(one: PlannedSchedule, other: PlannedSchedule) -> Iterator[str]:
    """Yield in words what `one` takes less or more of than the other, but for time: `30 % cheaper`."""
    for name, share in _shares(one, other).items():
        less, more = _WORDS[name]
        yield f"{percent(abs(share))} {less if share < 0 else more}"
    if fewer := other.num_devices - one.num_devices:
        yield f"{counted(abs(fewer), 'device')} {'fewer' if fewer > 0 else 'more'}"


def saves(one: PlannedSchedule, other: PlannedSchedule) -> bool:
    """Return whether `one` takes less of anything but time, and no more money or energy."""
    shares = _shares(one, other)
    takes_less = one.num_devices < other.num_devices or any(share < 0 for share in shares.values())
    return takes_less and all(shares.get(name, 0.0) <= 0 for name in OBJECTIVES)
