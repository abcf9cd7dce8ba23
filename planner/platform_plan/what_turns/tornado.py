"""What a plan's answer turns on: every uncertain number moved to its ends, and the whole question asked again.

The answer is who leads, and the speed-up over plain decoding. Where an end changes who leads, halving finds the value
at which it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import log, sqrt
from typing import Final

from decoding.errors import MirrorsdError
from planner.platform_plan.what_turns.moved_question import MovedQuestion, Standing, Way
from planner.platform_plan.what_turns.uncertain_numbers import UncertainNumber, uncertain_numbers

_WORTH: Final = 1.02
"""From this much faster on another leader at an end is worth to be told."""
_HALVINGS: Final = 6
SMALLEST: Final = 0.005
"""Smallest change of the speed-up that counts as an effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Where another way to decode takes the lead.

    Attributes:
        at: the value from which on it leads.
        side: on which side of it.
        leader: who leads there.
    """

    at: float
    side: str
    leader: Way


@dataclass(frozen=True, kw_only=True, slots=True)
class TornadoBar:
    """One number's effect on the answer.

    Attributes:
        number: itself.
        speedup_low, speedup_high: of the best speculation over plain decoding with the number at either end.
        now: today's.
        turn: the nearest value at which another way leads; None where none does within the ends.
    """

    number: UncertainNumber
    speedup_low: float
    speedup_high: float
    now: float
    turn: Turn | None

    @property
    def effect_low(self) -> float:
        """Change of the speed-up where the number is at its low end."""
        return self.speedup_low - self.now

    @property
    def effect_high(self) -> float:
        """Change of the speed-up where the number is at its high end."""
        return self.speedup_high - self.now

    @property
    def size(self) -> float:
        """The larger of both effects, either way."""
        return max(abs(self.effect_low), abs(self.effect_high))


def tornado(asked: MovedQuestion) -> tuple[TornadoBar, ...]:
    """Return the numbers with an effect: those first that change who leads, and the larger effects first."""
    bars = [bar for number in uncertain_numbers(asked.plan) for bar in _bar(asked, number)]
    return tuple(sorted(bars, key=lambda bar: (bar.turn is None, -bar.size)))


def _bar(asked: MovedQuestion, number: UncertainNumber) -> Iterator[TornadoBar]:
    with suppress(MirrorsdError):  # beyond what a platform may have: no end to ask about
        low, high = (asked.standing({number.field: value}) for value in (number.low, number.high))
        turns = [_turn(asked, number, value, there) for value, there in ((number.low, low), (number.high, high))]
        nearest = min(filter(None, turns), key=lambda turn: abs(log(turn.at / number.value)), default=None)
        bar = TornadoBar(
            number=number,
            speedup_low=low.speedup,
            speedup_high=high.speedup,
            now=asked.standing().speedup,
            turn=nearest,
        )
        if nearest is not None or bar.size >= SMALLEST:
            yield bar


def _turn(asked: MovedQuestion, number: UncertainNumber, end: float, there: Standing) -> Turn | None:
    """Return where the lead changes between today's value and an end; None where it does not, or for nearly nothing."""
    if asked.lead_lost(there) < _WORTH or asked.is_like_today(there.leader):
        return None
    before, after, leader = number.value, end, there.leader
    for _ in range(_HALVINGS):
        half = sqrt(before * after)
        found = asked.standing({number.field: half})
        if asked.lead_lost(found) > 1:
            after, leader = half, found.leader
        else:
            before = half
    return Turn(at=after, side="below" if end < number.value else "above", leader=leader)
