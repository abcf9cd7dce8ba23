"""Rounds differ in pace: in one round a draft's steps take longer, next to the target's pass, than in the next.

Where lanes take turns that averages out. Where they work at once it does not: a step that in half of the rounds begins
just before the verdict, and is then waited for, counts half, while at the mean pace it would count always or never. So
the rounds of a text go through a few paces in turn, the quantiles of a normal distribution, which both worlds know.

What a schedule's times are by context they are then by context and pace, one pace after the other: the *place* of a
round is that of its context among all contexts, and so many further as there are contexts for all paces before its own.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist, pstdev
from typing import Final, TypeVar

import numpy as np

from costs.contention import Slowdown
from costs.cost_model import Floats, Ints
from costs.durations import Durations
from costs.ticks import work_in_ticks

NUM_PACES: Final = 5
_DEVIATIONS: Final = tuple(NormalDist().inv_cdf((number + 0.5) / NUM_PACES) for number in (2, 0, 4, 1, 3))
"""In an order in which neighbours differ."""

Number = TypeVar("Number", int, Ints)


def pace_of(prompt: Number, number: Number, num_paces: int) -> Number:
    """Which pace a round of a prompt's text has, by their numbers: texts begin with different ones."""
    return (prompt + number) % num_paces


def paces(spread: float) -> tuple[float, ...]:
    """How many times as long steps take, of every pace: their mean is 1 and their standard deviation `spread`."""
    return tuple(1 + spread * one / pstdev(_DEVIATIONS) for one in _DEVIATIONS)


def paced(durations: Durations, spread: float) -> Durations:
    """The durations by context and pace: what drafts has one, the rest is the same at each."""
    factors, contexts = paces(spread), durations.segments_s[0].shape

    def alike(values: Floats) -> Floats:
        return np.tile(np.broadcast_to(values, contexts), NUM_PACES)

    def drafting(seconds: Floats) -> Floats:
        return np.concatenate([work_in_ticks(seconds * factor) for factor in factors], axis=-1)

    catch_up_s = drafting(durations.catch_up_s)
    later_s = tuple(map(drafting, durations.later_s))
    return replace(
        durations,
        num_paces=NUM_PACES,
        segments_s=tuple(map(alike, durations.segments_s)),
        streams_s=tuple(map(alike, durations.streams_s)),
        step_s={kind: drafting(seconds) for kind, seconds in durations.step_s.items()},
        catch_up_s=catch_up_s,
        later_s=later_s,
        rollout_s=catch_up_s + sum(later_s),
        guessing_s=drafting(durations.guessing_s),
        slowdowns=tuple(
            {kind: Slowdown(*map(alike, slow)) for kind, slow in slowdowns.items()} for slowdowns in durations.slowdowns
        ),
    )
