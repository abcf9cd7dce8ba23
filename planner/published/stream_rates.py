"""How often stream tokens are right, derived from the hidden draft steps in the Mirror-SD paper (arXiv 2510.13161)."""

from typing import Final

TOKENS_PER_HIDDEN_STEP: Final = 2.0
"""The paper says 3 to 4 hidden steps for 7 tokens; this is for 3.5."""
_HALVINGS: Final = 40
WINDOW: Final = 7
NUM_STREAMS: Final = 2


def mean_steps(rate: float, num_tokens: int, num_streams: int) -> float:
    """Return the mean number of steps that draft a window; each guess is right at `rate`, if those before it are."""
    left = [0.0] * (num_tokens + 1)  # mean number of further steps after so many drafted tokens
    for num_drafted in range(num_tokens - 1, 0, -1):
        num_guesses = min(num_streams, num_tokens - num_drafted - 1)
        shares = [rate**hits * (1 - rate if hits < num_guesses else 1) for hits in range(num_guesses + 1)]
        then = left[num_drafted + 1 : num_drafted + num_guesses + 2]
        left[num_drafted] = 1 + sum(share * steps for share, steps in zip(shares, then, strict=True))
    return 1 + left[1]


def stream_rate() -> float:
    """Return the rate of right guesses at which a window takes as many steps as in the paper."""
    steps, low, high = WINDOW / TOKENS_PER_HIDDEN_STEP, 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_steps(middle, WINDOW, NUM_STREAMS) > steps else (low, middle)
    return (low + high) / 2
