"""An acceptance record with all prompts' texts joined, so that one array operation serves every position.

Shape legend: T positions of all texts together, P prompts, W longest window, K candidates.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from costs.cost_model import Ints
from decoding.errors import RecordError
from decoding.record import AcceptanceRecord, Ids
from decoding.recorded.prompt_record import agreeing
from decoding.schedule import Schedule

NO_TOKEN = -1
"""Stands for a token that nobody knows."""


class Drafts(NamedTuple):
    """The longest chains that are drafted from every position.

    Attributes:
        tokens: what is drafted; -1 after the end of a shorter chain, [T, W].
        match_length: drafted tokens that agree with the text, [T].
        refused: the drafted token after those; `NO_TOKEN` if all W agree, [T].
    """

    tokens: Ids
    match_length: Ints
    refused: Ints


class Guessing(NamedTuple):
    """The steps of a draft with streams after the first one of every window, for one window length and stream count.

    Every step verifies what the streams guessed in the one before. The rule is that of the runtime's draft model: a
    window with n of its tokens is drafted on with min(streams, room) guesses after the n-th, and as many tokens are
    kept as were guessed right, and one more. Which guesses are right does not depend on how many are made, so one
    recorded number for every drafted place gives all steps of all windows, whether a rollout drafts them or a branch.

    `hits_TW` are right guesses in a row after each drafted place, [T, W].
    """

    hits_TW: Ints
    num_tokens: int
    num_streams: int

    def counts(self, at_R: Ints) -> Ints:
        """Return steps by how much they verify, for rounds at many positions at once.

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
        """Return the steps of the window that takes the most of all, its first one included."""
        return 1 + int((self.rows_by_step(np.arange(len(self.hits_TW))) > 0).sum(axis=0).max())

    def rows_by_step(self, at_R: Ints) -> Ints:
        """Return the rows of the steps that complete windows after the first, [steps, rounds]; 0 where complete."""
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


class JoinedRecord:
    """The arrays of a record, joined when first asked for.

    Of texts that were sampled, `seed` decides which tokens of sampling drafts are accepted: every token of a text has
    a draw of its own, the same for all schedules.
    """

    def __init__(self, record: AcceptanceRecord, *, seed: int = 0) -> None:
        """Raise `RecordError` if there is no prompt, or one without text."""
        if not record.prompts or not all(len(prompt.text) for prompt in record.prompts):
            raise RecordError(f"the record of {record.target} with {record.drafter} has no prompt, or one without text")
        self.record = record
        lengths = np.array([len(prompt.text) for prompt in record.prompts])
        self.starts = np.cumsum(lengths) - lengths
        self.ends = np.repeat(self.starts + lengths, lengths)
        self.text = _joined(prompt.text for prompt in record.prompts)
        self._seed = seed
        self._drafts: dict[tuple[bool, bool], Drafts] = {}
        self._candidates: dict[int | None, Ids] = {}

    def drafts(self, schedule: Schedule) -> Drafts:
        """Return the chains of the draft model: greedy ones, or sampled ones where the schedule's rule uses them."""
        with_features = schedule.exit_features
        key = with_features, self.record.samples_drafts(schedule)
        if key not in self._drafts:
            tokens = [self._drafted(number, *key) for number in range(len(self.record.prompts))]
            lengths = map(agreeing, (prompt.text for prompt in self.record.prompts), tokens)
            self._drafts[key] = _drafts(tokens, lengths)
        return self._drafts[key]

    def _drafted(self, number: int, with_features: bool, is_sampled: bool) -> Ids:  # noqa: FBT001
        """Return the chains of one prompt; its draws do not depend on how many others there are."""
        prompt = self.record.prompts[number]
        if not is_sampled:
            return prompt.drafts(with_features=with_features)
        draws = np.random.default_rng((self._seed, number)).random(len(prompt.text))
        return prompt.sampled_drafts(draws, with_features=with_features)

    def chain(self, chain: int) -> Drafts:
        """Return a chain of the record that no draft model drafted."""
        prompts = self.record.prompts
        return _drafts([one.chain_drafts[chain] for one in prompts], [one.chain_lengths(chain) for one in prompts])

    def stream_hits(self, *, with_features: bool) -> Ints:
        """Return the right guesses in a row after every drafted token from every position, [T, W]."""
        of = [p.feature_stream_hits if with_features else p.stream_hits for p in self.record.prompts]
        return _joined(of).astype(np.int64)

    def tree_lengths(self, tree: int, size: int) -> Ints:
        """Return the tokens that a drafted tree of `size` nodes gets accepted at every position, [T]."""
        return _joined(prompt.tree_lengths(tree, size) for prompt in self.record.prompts).astype(np.int64)

    def candidates(self, exit_layer: int | None) -> Ids:
        """Return the best ids for the place after every position, by that exit or by the draft for None, [T, K]."""
        if exit_layer not in self._candidates:
            width = self.record.num_candidates(exit_layer)
            of = (prompt.candidates(exit_layer)[:, :width] for prompt in self.record.prompts)
            self._candidates[exit_layer] = _joined(of)
        return self._candidates[exit_layer]

    def lengths(self, max_new_tokens: int | None) -> list[int]:
        """Return the new tokens of each prompt, P; raises `RecordError` where the record's texts were cut earlier."""
        most = self.record.max_new_tokens
        wanted = most if max_new_tokens is None else max_new_tokens
        if not 1 <= wanted <= most:
            raise RecordError(f"max_new_tokens is {wanted}; the record's texts allow 1..{most}")
        return [min(len(prompt.text), wanted) for prompt in self.record.prompts]


def _drafts(tokens: Iterable[Ids], match_lengths: Iterable[Ids]) -> Drafts:
    tokens_TW, match_length = _joined(tokens), _joined(match_lengths).astype(np.int64)
    padded = np.pad(tokens_TW, ((0, 0), (0, 1)), constant_values=NO_TOKEN)
    return Drafts(tokens_TW, match_length, padded[np.arange(len(padded)), match_length].astype(np.int64))


def _joined(arrays: Iterable[Ids]) -> Ids:
    return np.concatenate(list(arrays))
