"""How often a draft's streams are right, from the steps that windows take: no paper says the one, Mirror-SD the other.

A window of 7 tokens takes 3 to 4 hidden steps (arXiv 2510.13161). Its first step has no stream tokens, every other one
keeps those that are right in a row and one token more. So one rate for every stream token gives the mean number of
steps, and the steps give the rate.
"""

from __future__ import annotations

from typing import Final

TOKENS_PER_HIDDEN_STEP: Final = 2.0
"""3.5 hidden steps for 7 tokens, the middle of what the paper says."""
_HALVINGS: Final = 40


def mean_steps(rate: float, num_tokens: int, num_streams: int) -> float:
    """Return steps of a window whose guesses are right with a rate, given that those before them in their step are."""
    left = [0.0] * (num_tokens + 1)  # steps after so many tokens
    for num_drafted in range(num_tokens - 1, 0, -1):
        num_guesses = min(num_streams, num_tokens - num_drafted - 1)
        shares = [rate**hits * (1 - rate if hits < num_guesses else 1) for hits in range(num_guesses + 1)]
        then = left[num_drafted + 1 : num_drafted + num_guesses + 2]
        left[num_drafted] = 1 + sum(share * steps for share, steps in zip(shares, then, strict=True))
    return 1 + left[1]


def stream_rate(num_tokens: int, num_streams: int, *, steps: float | None = None) -> float:
    """Return the rate at which a window takes so many steps; None is as many as the paper's.

    Raises:
        ValueError: no rate gives it.
    """
    steps = num_tokens / TOKENS_PER_HIDDEN_STEP if steps is None else steps
    low, high = 0.0, 1.0
    if not mean_steps(high, num_tokens, num_streams) <= steps <= mean_steps(low, num_tokens, num_streams):
        msg = f"{num_tokens} tokens in {steps:g} steps: no rate of {num_streams} streams gives that"
        raise ValueError(msg)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_steps(middle, num_tokens, num_streams) > steps else (low, middle)
    return (low + high) / 2
