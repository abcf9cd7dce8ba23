"""How long rounds take on a profile by how they end, from the simulated world; and tokens per second from there.

A round's time depends on its context, on whether its window was accepted whole (then a draft in turn has one more token
to read) and on whether its outcome had a branch. So four kinds of simulated texts give the mean round of any text::

    speed-up = tokens per round * plain round / mean round
    tokens per round = 1 + a + a^2 + ... + a^window              (Leviathan, 2211.17192, equation 1)

for a rate `a` at which every drafted token is accepted, given that all before it were. This is what the world gives on
drawn texts, without the chance of the draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from costs.cost_model import Floats
from costs.durations import DurationTables
from decoding.schedule import Schedule
from planner.reproduce.machine import Constants
from planner.reproduce.setup import EXIT_TOP_K, NUM_STREAMS, PROMPT_TOKENS, ROUNDS, WINDOW, Setup
from planner.reproduce.stream_rate import stream_rate
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.acceptance.replay import Replay
from sim.arrays.array_lanes import Decided, time_rounds
from sim.derived.derived_profile import DerivedProfile

_HALVINGS: Final = 50
NUM_TOKENS: Final = (ROUNDS + 1) * (WINDOW + 1)
_NUM_STREAMING_TEXTS: Final = 64


class RoundSeconds(NamedTuple):
    """A schedule's rounds: refused somewhere or accepted whole, with a branch for their outcome or without."""

    refused_hit: float
    refused_miss: float
    whole_hit: float
    whole_miss: float

    def mean(self, rate: Floats, coverage: float) -> Floats:
        """Return the mean round where tokens are accepted with such rates, and so many outcomes have a branch."""
        whole = rate**WINDOW
        hit = (1 - whole) * self.refused_hit + whole * self.whole_hit
        miss = (1 - whole) * self.refused_miss + whole * self.whole_miss
        return coverage * hit + (1 - coverage) * miss


class Arms(NamedTuple):
    """The four arms of the paper, and plain decoding."""

    plain_s: float
    in_turn: RoundSeconds
    in_turn_streaming: RoundSeconds
    mirror: RoundSeconds
    mirror_streaming: RoundSeconds

    @classmethod
    def of(cls, setup: Setup, constants: Constants) -> Arms:
        """Return those of two models on a machine; errors as in `Setup.profiles`."""
        machine = setup.profile(constants)
        plain, streaming = (Rounds(machine, _texts(setup.exit_layer, count)) for count in (0, NUM_STREAMS))
        return cls(
            plain.seconds(setup.plain).refused_hit,
            plain.seconds(setup.in_turn),
            streaming.seconds(setup.streaming(setup.in_turn)),
            plain.seconds(setup.mirror),
            streaming.seconds(setup.streaming(setup.mirror)),
        )

    def speedup(self, arm: RoundSeconds, rate: Floats, coverage: float) -> Floats:
        """Return times plain decoding."""
        return tokens_per_round(rate) * self.plain_s / arm.mean(rate, coverage)

    def rate_of(self, speedup: Floats) -> Floats:
        """Return the rates at which vanilla speculation has these speed-ups; 0 or 1 where no rate has."""
        low, high = np.zeros_like(speedup), np.ones_like(speedup)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_below = self.speedup(self.in_turn, middle, 0.0) < speedup
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return np.where(self.speedup(self.in_turn, np.ones_like(high), 0.0) <= speedup, 1.0, low)


def tokens_per_round(rate: Floats) -> Floats:
    """Committed tokens of a round, the target's own among them."""
    tokens: Floats = (rate[..., np.newaxis] ** np.arange(WINDOW + 1)).sum(axis=-1)
    return tokens


class Rounds:
    """Rounds of schedules on one profile, in texts of rounds of one kind each, in the order of `RoundSeconds`."""

    def __init__(self, machine: DerivedProfile, texts: Sequence[Replay]) -> None:
        self._texts = texts
        self._tables = DurationTables(machine.profile, texts[0].contexts(None), machine.costs)

    def seconds(self, schedule: Schedule) -> RoundSeconds:
        """Return the mean round of each kind; first and last rounds of texts, which differ, are left out."""
        durations = self._tables.durations(schedule, self._texts[0].shape(schedule))
        found = []
        for text in self._texts:
            walk, guessing = text.walk(schedule, None).at_paces(durations.num_paces), text.guessing(schedule)
            guesses = None if guessing is None else guessing.counts(walk.at)
            times = time_rounds(schedule, durations, Decided(walk, text.branches(schedule, walk), guesses))
            found.append(float(times.seconds[~walk.is_first & ~walk.is_last].mean()))
        return RoundSeconds(*found)


@cache
def _texts(exit_layer: int, num_streams: int = 0) -> tuple[Bernoulli, ...]:
    """Return one text of each kind; with streams many, since it is by chance which of their tokens are right."""
    num_texts = _NUM_STREAMING_TEXTS if num_streams else 1
    return tuple(
        Bernoulli(
            float(whole),
            texts=Texts(num_texts=num_texts, num_tokens=NUM_TOKENS, prompt_length=PROMPT_TOKENS),
            exit_coverage={exit_layer: (float(hit),) * EXIT_TOP_K},
            stream_rates=(stream_rate(WINDOW, NUM_STREAMS),) * num_streams,
        )
        for whole in (0, 1)
        for hit in (1, 0)
    )
