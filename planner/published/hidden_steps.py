"""How often streams are right by the hidden steps that the Mirror-SD paper tells (arXiv 2510.13161)."""

from typing import Final

TOKENS_PER_HIDDEN_STEP: Final = 2.0
"""3.5 hidden steps for 7 tokens, the middle of what the paper says."""
_HALVINGS: Final = 40
WINDOW: Final = 7
NUM_STREAMS: Final = 2


def mean_steps(rate: float, num_tokens: int, num_streams: int) -> float:
    """Return steps of a window whose guesses are right with a rate, given that those before them in their step are."""
    left = [0.0] * (num_tokens + 1)  # steps after so many tokens
    for num_drafted in range(num_tokens - 1, 0, -1):
        num_guesses = min(num_streams, num_tokens - num_drafted - 1)
        shares = [rate**hits * (1 - rate if hits < num_guesses else 1) for hits in range(num_guesses + 1)]
        then = left[num_drafted + 1 : num_drafted + num_guesses + 2]
        left[num_drafted] = 1 + sum(share * steps for share, steps in zip(shares, then, strict=True))
    return 1 + left[1]


def stream_rate() -> float:
    """Return the rate of right guesses at which a window takes as many steps as the paper's."""
    steps, low, high = WINDOW / TOKENS_PER_HIDDEN_STEP, 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_steps(middle, WINDOW, NUM_STREAMS) > steps else (low, middle)
    return (low + high) / 2
