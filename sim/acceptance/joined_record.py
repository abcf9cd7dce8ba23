"""An acceptance record with the texts of all prompts concatenated, so that one array operation serves all positions.

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
"""Stands for an unknown token."""


class Drafts(NamedTuple):
    """The longest chains drafted from each position.

    Attributes:
        tokens: drafted tokens; -1 after the end of a shorter chain, [T, W].
        match_length: number of first drafted tokens that agree with the text, [T].
        refused: the drafted token after them; `NO_TOKEN` if all W agree, [T].
    """

    tokens: Ids
    match_length: Ints
    refused: Ints


class Guessing(NamedTuple):
    """The steps of a draft with streams after the first step of each window, for one window length and stream count.

    Each step verifies the guesses that the streams made in the step before. As in the runtime's draft model, a step
    after n drafted tokens has min(streams, room) guesses, and adds the right ones and one more token. Whether a guess
    is right does not depend on how many are made, so one recorded number per drafted token (`hits_TW`: consecutive
    right guesses after it, [T, W]) gives the steps of all windows, of rollouts and branches.
    """

    hits_TW: Ints
    num_tokens: int
    num_streams: int

    def counts(self, at_R: Ints) -> Ints:
        """Return how many steps are left in the windows of rounds, by guesses: [steps done, rounds, guesses].

        The first step of a window never counts, so that 0 and 1 steps done are equal.
        """
        counts = np.zeros((self.num_tokens + 1, len(at_R), self.num_streams + 1), dtype=np.int64)
        for step, rows_R in enumerate(self.rows_by_step(at_R), 1):
            [at_work] = np.nonzero(rows_R)
            counts[: step + 1, at_work, rows_R[at_work] - 1] += 1
        return counts

    @property
    def most_steps(self) -> int:
        """The largest number of steps of any window, including the first step."""
        return 1 + int((self.rows_by_step(np.arange(len(self.hits_TW))) > 0).sum(axis=0).max())

    def rows_by_step(self, at_R: Ints) -> Ints:
        """Return the rows of the steps after a window's first one, [steps, rounds]; 0 once the window is complete."""
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
    """The concatenated arrays of a record, computed on first use.

    For sampled texts, `seed` decides which tokens of sampling drafts are accepted: each token of a text has a fixed
    draw, the same for all schedules.
    """

    def __init__(self, record: AcceptanceRecord, *, seed: int = 0) -> None:
        """Join the texts; raises `RecordError` if there is no prompt, or a prompt without text."""
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
        """Return the chains of the draft model: sampled if the schedule's rule uses sampled drafts, else greedy."""
        with_features = schedule.exit_features
        key = with_features, self.record.samples_drafts(schedule)
        if key not in self._drafts:
            tokens = [self._drafted(number, *key) for number in range(len(self.record.prompts))]
            lengths = map(agreeing, (prompt.text for prompt in self.record.prompts), tokens)
            self._drafts[key] = _drafts(tokens, lengths)
        return self._drafts[key]

    def _drafted(self, number: int, with_features: bool, is_sampled: bool) -> Ids:  # noqa: FBT001
        """Return the chains of one prompt; the draws do not depend on the number of prompts."""
        prompt = self.record.prompts[number]
        if not is_sampled:
            return prompt.drafts(with_features=with_features)
        draws = np.random.default_rng((self._seed, number)).random(len(prompt.text))
        return prompt.sampled_drafts(draws, with_features=with_features)

    def chain(self, chain: int) -> Drafts:
        """Return the chains with index `chain` in the record: those of a drafter that is no draft model."""
        prompts = self.record.prompts
        return _drafts([one.chain_drafts[chain] for one in prompts], [one.chain_lengths(chain) for one in prompts])

    def stream_hits(self, *, with_features: bool) -> Ints:
        """Return the number of consecutive right guesses after each drafted token, [T, W]."""
        of = [p.feature_stream_hits if with_features else p.stream_hits for p in self.record.prompts]
        return _joined(of).astype(np.int64)

    def tree_lengths(self, tree: int, size: int) -> Ints:
        """Return the number of accepted tokens of a drafted tree with `size` nodes at each position, [T]."""
        return _joined(prompt.tree_lengths(tree, size) for prompt in self.record.prompts).astype(np.int64)

    def candidates(self, exit_layer: int | None) -> Ids:
        """Return the best candidates for the token after each position, by an exit or (None) by the draft, [T, K]."""
        if exit_layer not in self._candidates:
            width = self.record.num_candidates(exit_layer)
            of = (prompt.candidates(exit_layer)[:, :width] for prompt in self.record.prompts)
            self._candidates[exit_layer] = _joined(of)
        return self._candidates[exit_layer]

    def lengths(self, max_new_tokens: int | None) -> list[int]:
        """Return the number of new tokens of each prompt, [P]; raises `RecordError` if the texts were cut earlier."""
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
