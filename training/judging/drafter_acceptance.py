"""Held-out figures: tokens accepted in simulated rounds, and wanted tokens among the best of heads, streams or exits.

Rounds are simulated on greedy answers: a drafted token is accepted when it equals the answer's next token. No target
runs. Shapes: legend of `runtime.drafters.language_model.rollouts`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import nan
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.language_model.rollouts import rollouts_everywhere
from runtime.drafters.trees import following
from training.data.states import Conversation


class StrictPart(BaseModel):
    """A part of a card."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskAcceptance(StrictPart):
    """Rounds on some prompts: committed tokens per round, bonus included, and acceptance by position in the draft.

    Rates are among the rounds that accepted every position before, and end with the last one that a round ever came to.
    """

    mean_acceptance_length: float
    conditional_acceptance_rate: tuple[float, ...]


class HeldOutAcceptance(TaskAcceptance):
    """Rounds on held-out greedy answers; of a tree (`tree_size`, 0: a chain) `num_tokens` are its longest path's."""

    num_tokens: int
    with_features: bool
    num_rounds: int
    tree_size: int = 0

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], num_tokens: int, **more: Any) -> Self:
        """Return the rounds on some answers, given how many tokens drafted at each of their places agree with them."""
        accepted = [count for answer in lengths for count in accepted_by_round(answer, num_tokens)]
        reached = [sum(count >= place for count in accepted) for place in range(num_tokens + 1)]
        mean = sum(map(len, lengths)) / len(accepted) if accepted else nan
        return cls(
            mean_acceptance_length=round(mean, 4),
            conditional_acceptance_rate=tuple(round(now / before, 4) for before, now in pairwise(reached) if before),
            num_tokens=num_tokens,
            num_rounds=len(accepted),
            **more,
        )


def judge_draft(
    draft: DraftModel,
    conversations: Sequence[Conversation],
    indices: Sequence[int],
    *,
    windows: Sequence[int],
    features: Callable[[int], Tensor] | None,
) -> list[HeldOutAcceptance]:
    """Return the acceptance on some conversations with greedy answers, one result per window length.

    `features` gives a conversation's exit features [T, E] by its index; None judges the draft without them.
    """
    lengths = []
    for index in indices:
        ids, start = conversations[index].ids, len(conversations[index].prompt)
        drafted = rollouts_everywhere(
            draft,
            ids,
            start=start,
            num_tokens=max(windows),
            num_alternatives=1,
            features_TE=features(index) if features else None,
        )
        agrees_NW = drafted.tokens == following(ids, start, max(windows)).numpy()
        lengths.append(agrees_NW.cumprod(-1).sum(-1).tolist())
    return [HeldOutAcceptance.of(lengths, window, with_features=features is not None) for window in windows]


def judge_trees(ranks: Sequence[NDArray[np.int32]], *, sizes: Sequence[int]) -> list[HeldOutAcceptance]:
    """Return the acceptance of trees of several sizes; nothing without answers.

    `ranks` [N, depth] of each answer are its tokens' places in the tree's order, -1 for none (`AcceptanceRecord`).
    """
    results = []
    for size in sizes if ranks else ():
        lengths = [np.cumprod((answer >= 0) & (answer < size), axis=1).sum(axis=1).tolist() for answer in ranks]
        results.append(HeldOutAcceptance.of(lengths, ranks[0].shape[1], with_features=True, tree_size=size))
    return results


def accepted_by_round(lengths: Sequence[int], num_tokens: int) -> list[int]:
    """Return the accepted tokens of each round, when every round drafts `num_tokens` where the last one ended."""
    accepted = []
    place = 0
    while place < len(lengths):
        accepted.append(min(lengths[place], num_tokens))
        place += accepted[-1] + 1
    return accepted


TopKShares = dict[int, dict[int, float]]
"""Number of the output -> top-k -> share of positions whose wanted token is among the output's k best."""


class AgreementCount:
    """Counts batch by batch; shapes: legend of `training.data.batch`."""

    def __init__(self, top_ks: Sequence[int] = (1, 3, 8)) -> None:
        self._top_ks = top_ks
        self._hits: Counter[tuple[int, int]] = Counter()
        self._totals: Counter[int] = Counter()

    def add(self, number: int, logits_MV: Tensor, wanted_M: Tensor) -> None:
        """Count one batch of an output: its logits, and the wanted places among them (-1 for none)."""
        best_MK = logits_MV.topk(min(max(self._top_ks), logits_MV.shape[-1])).indices
        found_MK = best_MK == wanted_M[:, None]
        self._totals[number] += len(found_MK)
        for top_k in self._top_ks:
            self._hits[number, top_k] += int(found_MK[:, :top_k].any(-1).sum())

    @property
    def shares(self) -> TopKShares:
        """Counts as shares of the rows."""
        return {
            number: {top_k: self._hits[number, top_k] / max(total, 1) for top_k in self._top_ks}
            for number, total in self._totals.items()
        }

    def figures(self, name: str) -> dict[str, float]:
        """Return the shares by names that begin with `name`."""
        return {
            f"{name}{number}_top{top_k}": share for number, row in self.shares.items() for top_k, share in row.items()
        }
