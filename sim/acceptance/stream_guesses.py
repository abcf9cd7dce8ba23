"""Steps of a draft with streams: every step after the first verifies what the streams guessed in the one before.

The rule is that of `runtime.drafters.language_model.drafter`: a window with n of its tokens is drafted on with
min(streams, room) guesses after the n-th, and as many tokens are kept as were guessed right, and one more. Which
guesses are right does not depend on how many are made, so one recorded number for every drafted place gives all steps
of all windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.cost.cost_model import Ints


class Guessing(NamedTuple):
    """The steps after the first one of every window, for one window length and number of streams.

    Shape legend: T positions of all prompts' texts together, W longest recorded window, J streams.

    Attributes:
        hits_TW: right guesses in a row after each drafted place.
        starts: where each prompt begins among the positions.
        num_tokens: the schedule's `num_speculative_tokens`.
        num_streams: its `draft_streams`.
    """

    hits_TW: Ints
    starts: Ints
    num_tokens: int
    num_streams: int

    def rows(self, prompt: int, position: int, num_drafted: int) -> tuple[int, ...]:
        """Rows of the steps that complete a window of which `num_drafted` tokens (one at least) are there."""
        hits = self.hits_TW[self.starts[prompt] + position]
        rows = []
        while num_drafted < self.num_tokens:
            num_guesses = self._num_guesses(num_drafted)
            rows.append(1 + num_guesses)
            num_drafted += 1 + min(int(hits[num_drafted - 1]), num_guesses)
        return tuple(rows)

    def counts(self, prompt_R: Ints, position_R: Ints) -> Ints:
        """The same for many rounds at once: steps by their number of guesses, [tokens there, rounds, guesses]."""
        hits_RW = self.hits_TW[self.starts[prompt_R] + position_R]
        num_rounds = len(hits_RW)
        counts = np.zeros((self.num_tokens + 1, num_rounds, self.num_streams + 1), dtype=np.int64)
        for num_drafted in reversed(range(1, self.num_tokens)):
            num_guesses = self._num_guesses(num_drafted)
            then = num_drafted + 1 + np.minimum(hits_RW[:, num_drafted - 1], num_guesses)
            counts[num_drafted] = counts[then, np.arange(num_rounds)]
            counts[num_drafted, :, num_guesses] += 1
        return counts

    def _num_guesses(self, num_drafted: int) -> int:
        return min(self.num_streams, self.num_tokens - num_drafted - 1)
