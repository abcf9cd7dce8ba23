"""Held-out figures: acceptance in simulated rounds, and top-k agreement of heads, streams and exits.

Rounds are simulated on greedy answers without running the target: a drafted token is accepted if it equals the answer's
next token. Shape legend: as in `runtime.drafters.language_model.rollouts`.
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
    """Base of the parts of a card."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskAcceptance(StrictPart):
    """Acceptance on some prompts.

    Attributes:
        mean_acceptance_length: committed tokens per round, including the bonus token.
        conditional_acceptance_rate: by position in the draft, among the rounds that accepted all positions before; ends
            with the last position that any round reached.
    """

    mean_acceptance_length: float
    conditional_acceptance_rate: tuple[float, ...]


class HeldOutAcceptance(TaskAcceptance):
    """Acceptance on held-out greedy answers.

    `num_tokens`: drafted tokens of a chain (`tree_size` 0), or the depth of a tree.
    """

    num_tokens: int
    with_features: bool
    num_rounds: int
    tree_size: int = 0

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], num_tokens: int, **more: Any) -> Self:
        """Return the acceptance on some answers; `lengths`: agreeing drafted tokens at each position of each answer."""
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
    """Return the acceptance on some conversations with greedy answers, one result per draft length.

    `features`: returns a conversation's exit features [T, E] by index; None: judge the draft without features.
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
    """Return the acceptance of trees of several sizes; empty without answers.

    `ranks`: for each answer, the indices of the nodes that hold its next tokens, -1 for none, [N, depth]
    (`AcceptanceRecord`).
    """
    results = []
    for size in sizes if ranks else ():
        lengths = [np.cumprod((answer >= 0) & (answer < size), axis=1).sum(axis=1).tolist() for answer in ranks]
        results.append(HeldOutAcceptance.of(lengths, ranks[0].shape[1], with_features=True, tree_size=size))
    return results


def accepted_by_round(lengths: Sequence[int], num_tokens: int) -> list[int]:
    """Return the accepted tokens of each round, if each round drafts `num_tokens` where the one before ended."""
    accepted = []
    place = 0
    while place < len(lengths):
        accepted.append(min(lengths[place], num_tokens))
        place += accepted[-1] + 1
    return accepted


TopKShares = dict[int, dict[int, float]]
"""Share of positions whose wanted token is among the k best of an output: {number of the output: {k: share}}."""


class AgreementCount:
    """Counts top-k agreement batch by batch. Shape legend: as in `training.data.batch`."""

    def __init__(self, top_ks: Sequence[int] = (1, 3, 8)) -> None:
        self._top_ks = top_ks
        self._hits: Counter[tuple[int, int]] = Counter()
        self._totals: Counter[int] = Counter()

    def add(self, number: int, logits_MV: Tensor, wanted_M: Tensor) -> None:
        """Count one batch of output `number`: its logits, and the index of each wanted token (-1: not among them)."""
        best_MK = logits_MV.topk(min(max(self._top_ks), logits_MV.shape[-1])).indices
        found_MK = best_MK == wanted_M[:, None]
        self._totals[number] += len(found_MK)
        for top_k in self._top_ks:
            self._hits[number, top_k] += int(found_MK[:, :top_k].any(-1).sum())

    @property
    def shares(self) -> TopKShares:
        """The shares over all batches."""
        return {
            number: {top_k: self._hits[number, top_k] / max(total, 1) for top_k in self._top_ks}
            for number, total in self._totals.items()
        }

    def figures(self, name: str) -> dict[str, float]:
        """Return the shares by figure name, such as `NAME1_top3`."""
        return {
            f"{name}{number}_top{top_k}": share for number, row in self.shares.items() for top_k, share in row.items()
        }
