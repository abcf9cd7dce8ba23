"""Converts acceptance rates to tokens per round, and back."""

from typing import Final, NamedTuple

import numpy as np

OTHER_NUMBER_ERROR: Final = 0.12
"""Relative error of a round's tokens if the accepted share is of another draft length. Nine of ten of the 32 pairs of
draft lengths (two or more tokens) with one source in `acceptance.csv` lie inside."""


class RoundTokens(NamedTuple):
    """Committed tokens of a round, and their relative error."""

    tokens: float
    error: float


def tokens_of_rate(rate: float, drafted: int) -> float:
    """Return the committed tokens of a round whose drafted tokens are each accepted at `rate`, if those before are."""
    return sum(rate**place for place in range(drafted + 1))


def tokens_in_parallel(rate: float, drafted: int) -> float:
    """Return the committed tokens per target pass if the draft runs ahead and loses its work after a refusal.

    PEARL's formula (arXiv 2408.11850).
    """
    return tokens_of_rate(rate, drafted - 1) / (1 + rate * (1 - rate**drafted))


def rate_of_tokens(tokens: float, drafted: int) -> float:
    """Return the acceptance rate at which a round commits `tokens` tokens."""
    rates = np.linspace(0, 1, 1001)
    return float(np.interp(tokens, np.sum([rates**place for place in range(drafted + 1)], axis=0), rates))


def share_at(drafted: int, told_of: int, share: float) -> float:
    """Return the accepted share of windows of `drafted` tokens from that of windows of `told_of`, at the same rate."""
    rate = rate_of_tokens(1 + told_of * share, told_of)
    return (tokens_of_rate(rate, drafted) - 1) / drafted
