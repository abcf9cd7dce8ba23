"""Rounds differ in pace: in one round a draft's steps take longer, next to the target's pass, than in the next.

Where lanes take turns that averages out. Where they work at once it does not: a step that in half of the rounds begins
just before the verdict, and is then waited for, counts half, while at the mean pace it would count always or never. So
the rounds of a sequence go through a few paces in turn, the quantiles of a normal distribution. Both simulators do so.

What a schedule's times are by context they are then by context and pace, one pace after the other: the *place* of a
round is that of its context among all contexts, and so many further as there are contexts for all paces before its own.
"""

from statistics import NormalDist, pstdev
from typing import Final, TypeVar

from costs.cost_model import Ints

NUM_PACES: Final = 5
_DEVIATIONS: Final = tuple(NormalDist().inv_cdf((number + 0.5) / NUM_PACES) for number in (2, 0, 4, 1, 3))
"""In an order in which neighbours differ."""

Number = TypeVar("Number", int, Ints)


def pace_of(prompt: Number, number: Number, num_paces: int) -> Number:
    """Return which pace a round of a prompt's sequence has, by their numbers: sequences begin with different ones."""
    return (prompt + number) % num_paces


def paces(spread: float) -> tuple[float, ...]:
    """Return the factor on steps of each pace: their mean is 1 and their standard deviation `spread`."""
    return tuple(1 + spread * one / pstdev(_DEVIATIONS) for one in _DEVIATIONS)
