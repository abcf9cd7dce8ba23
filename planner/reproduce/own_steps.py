"""The arms with streams step by step: guesses are verified by rows of their own, as the drafts of this project do.

The closed form of `planner.reproduce.streaming_draft` follows the paper, which counts steps and no such rows. Here both
worlds' own steps are played: a step of all branches has a row for each and one for each of its guesses.
"""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from planner.reproduce.reproduction import Reproduction
from planner.reproduce.round_seconds import NUM_TOKENS, Rounds
from planner.reproduce.setup import EXIT_TOP_K, PROMPT_TOKENS, WINDOW
from planner.reproduce.streaming_draft import NUM_STREAMS, stream_rate
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts

_NUM_TEXTS: Final = 64


class OwnSteps(NamedTuple):
    """Mean speed-ups over plain decoding, where every guess is right with `rate`."""

    rate: float
    in_turn: float
    mirror: float


def own_steps(found: Reproduction) -> OwnSteps:
    """Return the two arms with streams on the machine of a reproduction, with its constants and rates of acceptance."""
    setup, coverage = found.setup, found.constants["exit_coverage"]
    plain, _ = setup.profiles(found.constants)
    rounds = Rounds(plain, _texts(setup.exit_layer))
    rates = np.array([cell.rate for cell in found.cells])
    in_turn, mirror = (
        fmean(found.arms.speedup(rounds.seconds(setup.streaming(schedule)), rates, coverage).tolist())
        for schedule in (setup.in_turn, setup.mirror)
    )
    return OwnSteps(stream_rate(WINDOW), in_turn, mirror)


@cache
def _texts(exit_layer: int) -> tuple[Bernoulli, ...]:
    """Texts of rounds of one kind each, in the order of `RoundSeconds`; only which guesses are right is by chance."""
    texts = Texts(num_texts=_NUM_TEXTS, num_tokens=NUM_TOKENS, prompt_length=PROMPT_TOKENS)
    return tuple(
        Bernoulli(
            float(whole),
            texts=texts,
            exit_coverage={exit_layer: (float(hit),) * EXIT_TOP_K},
            stream_rates=(stream_rate(WINDOW),) * NUM_STREAMS,
        )
        for whole in (0, 1)
        for hit in (1, 0)
    )
