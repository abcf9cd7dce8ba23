"""Compares schedules by more than time: money, energy, memory and devices; and the Pareto front."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import le
from typing import Final

from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.wording import counted, percent

OBJECTIVES: Final = ("tpot_s", "energy_j_per_token", "usd_per_million_tokens")
"""What is minimised per token; a number that is not known counts as infinite."""
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "usd_per_million_tokens": ("cheaper", "more expensive"),
    "energy_j_per_token": ("less energy", "more energy"),
    "memory_bytes": ("less memory", "more memory"),
}
_SMALLEST: Final = 0.05
"""Relative differences below this are not named."""


def pareto(ranking: Sequence[PlannedSchedule]) -> list[PlannedSchedule]:
    """Return the Pareto front of `OBJECTIVES` among schedules that need no training, the fastest first.

    Of schedules that are equal in all objectives, the first one is on the front.
    """

    def costs_of(one: PlannedSchedule) -> list[float]:
        values = (getattr(one, name) for name in OBJECTIVES)
        return [inf if value is None else value for value in values]

    front: list[PlannedSchedule] = []
    # Sorted by costs, so that no schedule is dominated by a later one.
    for one in sorted((one for one in ranking if not one.needs_training), key=costs_of):
        if not any(all(map(le, costs_of(other), costs_of(one))) for other in front):
            front.append(one)
    return front


def _shares(one: PlannedSchedule, other: PlannedSchedule) -> dict[str, float]:
    """Return what `one` takes relative to `other` of each of `_WORDS`, minus one; small differences are left out."""
    both = {name: (getattr(one, name), getattr(other, name)) for name in _WORDS}
    shares = {name: ours / theirs - 1 for name, (ours, theirs) in both.items() if ours is not None and theirs}
    return {name: share for name, share in shares.items() if abs(share) >= _SMALLEST}


def differences(one: PlannedSchedule, other: PlannedSchedule) -> Iterator[str]:
    """Yield the differences of `one` from `other` except time, in words: `30 % cheaper`."""
    for name, share in _shares(one, other).items():
        less, more = _WORDS[name]
        yield f"{percent(abs(share))} {less if share < 0 else more}"
    fewer = other.num_devices - one.num_devices
    if fewer:
        yield f"{counted(abs(fewer), 'device')} {'fewer' if fewer > 0 else 'more'}"


def saves(one: PlannedSchedule, other: PlannedSchedule) -> bool:
    """Return whether `one` takes less money, energy, memory or devices than `other`, and no more money or energy."""
    shares = _shares(one, other)
    takes_less = one.num_devices < other.num_devices or any(share < 0 for share in shares.values())
    return takes_less and all(shares.get(name, 0.0) <= 0 for name in OBJECTIVES)
