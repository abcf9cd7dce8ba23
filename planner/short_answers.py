"""Whole requests: reading the prompt takes its time, so another kind of decoding may finish a short answer first."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planner.kinds import KINDS, Kind
from planner.search.search import Candidate, SearchResult

LENGTHS = (16, 2000)
"""Tokens of a short and of a long answer."""
WORTH_A_WORD = 0.02
"""Smallest share of a request that a sentence spends words on."""


def short_answers(result: SearchResult, slower: Collection[Kind]) -> Iterator[str]:
    """For which lengths of an answer a kind that decodes more slowly is done first, reading the prompt included.

    Nothing where reading a prompt was not measured. `slower` are the kinds that are told to decode more slowly than the
    winner: of the others nothing is known to begin with.
    """
    best = [result.best(kind=kind) for kind in KINDS if kind in slower]
    rivals = [rival for rival in best if rival is not None and rival is not result.winner]
    contestants = [*rivals, result.winner]
    if any(one.prediction.prefill_s is None for one in contestants):
        return
    for rival in rivals:
        first, last = LENGTHS
        lengths = [length for length in range(first, last + 1) if _is_first(rival, result.winner, contestants, length)]
        if lengths:
            yield (
                f"With the time to read the prompt, {rival.schedule.traits.title} is predicted to finish answers of "
                f"{lengths[0]:,} to {lengths[-1]:,} tokens first."
            )


def _is_first(rival: Candidate, winner: Candidate, contestants: list[Candidate], length: int) -> bool:
    """Whether the rival is done before all others, and before the winner by more than a trifle."""
    own_s = _e2e_s(rival, length)
    others_s = [_e2e_s(one, length) for one in contestants if one is not rival]
    return own_s < min(others_s) and own_s < (1 - WORTH_A_WORD) * _e2e_s(winner, length)


def _e2e_s(candidate: Candidate, num_tokens: int) -> float:
    time_s = candidate.prediction.e2e_at(num_tokens)
    assert time_s is not None
    return time_s
