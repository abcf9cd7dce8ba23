"""Tokens of a round by the rate at which drafted ones are accepted, and rates by tokens."""

from typing import Final, NamedTuple

import numpy as np

OTHER_NUMBER_ERROR: Final = 0.12
"""Of a round's tokens by a share of another number drafted: nine of ten of the 32 pairs of numbers of one source in
`acceptance.csv`, none of a single token, lie inside."""


class RoundTokens(NamedTuple):
    """Tokens that a round brings, and their relative error."""

    tokens: float
    error: float


def tokens_of_rate(rate: float, drafted: int) -> float:
    """Return tokens of a round where each drafted one is accepted so often, if those before it are."""
    return sum(rate**place for place in range(drafted + 1))


def tokens_in_parallel(rate: float, drafted: int) -> float:
    """Return tokens of a target's pass while a chain of drafts runs ahead: what is drafted after a refusal is lost.

    PEARL's formula (arXiv 2408.11850).
    """
    return tokens_of_rate(rate, drafted - 1) / (1 + rate * (1 - rate**drafted))


def rate_of_tokens(tokens: float, drafted: int) -> float:
    """Return the rate at which a round has `tokens` tokens."""
    rates = np.linspace(0, 1, 1001)
    return float(np.interp(tokens, np.sum([rates**place for place in range(drafted + 1)], axis=0), rates))


def share_at(drafted: int, told_of: int, share: float) -> float:
    """Return the accepted share of windows of `drafted` tokens by the share of others, at the same rate."""
    rate = rate_of_tokens(1 + told_of * share, told_of)
    return (tokens_of_rate(rate, drafted) - 1) / drafted
