"""Next tokens that rows of a draft propose: the argmax, or draws from its truncated distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decoding.messages import Candidates, Window
from runtime.arrays import Array, inference
from runtime.models.vocabulary import OutputRows, best_places, ranked_ids
from runtime.verification.replayed_text import ReplayedText
from runtime.verification.rules import GREEDY, Sampling, draw_from, truncated, uniform

NUM_SAMPLED_FROM = 64
"""Ids a sampled draft chooses among; with their probabilities they cross the channel in less than 1 kB."""


class Proposal(NamedTuple):
    """The next token that one row of a step proposes."""

    token: int
    alternatives: tuple[int, ...] = ()
    distribution: Candidates | None = None


def as_window(proposals: Sequence[Proposal]) -> Window:
    """Return the proposals of successive positions as a window."""
    return Window(
        tuple(proposal.token for proposal in proposals),
        tuple(proposal.alternatives for proposal in proposals if proposal.alternatives),
        tuple(proposal.distribution for proposal in proposals if proposal.distribution is not None),
    )


def num_verified(ids: Sequence[int], proposals: Sequence[Proposal]) -> int:
    """Return how many rows from the first on were fed what the row before proposed."""
    count = 1
    while count < len(ids) and ids[count] == proposals[count - 1].token:
        count += 1
    return count


class Proposer:
    """Next tokens of rows, with as many alternatives as are wanted; `ids` are those that `output` has now."""

    def __init__(self, output: OutputRows, *, num_alternatives: int = 0, sampling: Sampling = GREEDY) -> None:
        self.ids: list[int] = output.ids.tolist()
        self._output, self._num_alternatives, self._sampling = output, num_alternatives, sampling

    @inference
    def __call__(self, hidden_RD: Array, positions: Sequence[int]) -> list[Proposal]:
        """Next tokens of rows [R, D], for the given text positions."""
        logits_RV, ids = self._output.logits(hidden_RD), self.ids
        if self._num_alternatives:
            best = ranked_ids(logits_RV, self._num_alternatives).tolist()
            alternatives = [tuple(ids[index] for index in row) for row in best]
        else:
            alternatives = [(ids[index],) for index in best_places(logits_RV).tolist()]
        if (replay := self._sampling.replay) is not None:
            return [self._replayed(replay, *row) for row in zip(alternatives, positions, strict=True)]
        if self._sampling.drafts_are_sampled:
            return [self._sample(*row) for row in zip(logits_RV, alternatives, positions, strict=True)]
        return [Proposal(row[0], row if self._num_alternatives else ()) for row in alternatives]

    def _replayed(self, replay: ReplayedText, own: tuple[int, ...], position: int) -> Proposal:
        token = replay.draft_token(position, own[0])
        return Proposal(token, replay.draft_alternatives(position, own) if self._num_alternatives else ())

    def _sample(self, logits_V: Array, alternatives: tuple[int, ...], position: int) -> Proposal:
        best = truncated(logits_V, self._sampling.temperature, NUM_SAMPLED_FROM)
        candidates = best._replace(tokens=tuple(self.ids[index] for index in best.tokens))
        token = draw_from(candidates, uniform(self._sampling.seed, "draft", position))
        return Proposal(token, alternatives if self._num_alternatives else (), candidates)
