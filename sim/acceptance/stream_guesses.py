"""Steps of a draft with streams: every step after the first verifies what the streams guessed in the one before.

The rule is that of `runtime.drafters.language_model.drafter`: a window with n of its tokens is drafted on with
min(streams, room) guesses after the n-th, and as many tokens are kept as were guessed right, and one more. Which
guesses are right does not depend on how many are made, so one recorded number for every drafted place gives all steps
of all windows. A window has the same steps whether a rollout drafts it or a branch does, or one after the other.
"""

from typing import NamedTuple

import numpy as np

from costs.cost_model import Ints


class Guessing(NamedTuple):
    """The steps after the first one of every window, for one window length and number of streams.

    `hits_TW` are right guesses in a row after each drafted place, T positions of all prompts' texts together by W
    longest recorded window.
    """

    hits_TW: Ints
    num_tokens: int
    num_streams: int

    def counts(self, at_R: Ints) -> Ints:
        """Steps by how much they verify, for rounds at many positions at once.

        Of the steps that are left once some were done, those with so many guesses: [steps done, rounds, guesses].
        Before the first step they are those after it.
        """
        counts = np.zeros((self.num_tokens + 1, len(at_R), self.num_streams + 1), dtype=np.int64)
        for step, rows_R in enumerate(self.rows_by_step(at_R), 1):
            [at_work] = np.nonzero(rows_R)
            counts[: step + 1, at_work, rows_R[at_work] - 1] += 1
        return counts

    @property
    def most_steps(self) -> int:
        """Steps of the window that takes the most of all, its first one included."""
        return 1 + int((self.rows_by_step(np.arange(len(self.hits_TW))) > 0).sum(axis=0).max())

    def rows_by_step(self, at_R: Ints) -> Ints:
        """Rows of the steps that complete windows after their first step, [steps, rounds]; none in a complete one."""
        hits_RW = self.hits_TW[at_R]
        rows = np.zeros((self.num_tokens - 1, len(at_R)), dtype=np.int64)
        num_drafted = np.ones(len(at_R), dtype=np.int64)
        for rows_R in rows:
            [at_work] = np.nonzero(num_drafted < self.num_tokens)
            last = num_drafted[at_work] - 1
            num_guesses = np.minimum(self.num_streams, self.num_tokens - 2 - last)
            rows_R[at_work] = 1 + num_guesses
            num_drafted[at_work] += 1 + np.minimum(hits_RW[at_work, last], num_guesses)
        return rows
