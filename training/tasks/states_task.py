"""Base classes of training tasks: train on cached states, judge on held-out ones, write a drafter folder.

They also grow the static trees of heads and streams: each step adds the path that agrees with the text at most
positions (Medusa, arXiv 2401.10774, section 2.3.3), counting the joint occurrence of all ranks on the path.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from decoding.progress import ReportCount
from decoding.tree_shape import MOST_RANKS, Ranks, grow, places_along
from decoding.tree_shape import Path as TreePath
from runtime.models.decoder import Decoder
from training.data.states import TargetStates
from training.judging.drafter_acceptance import HeldOutAcceptance, TopKShares, judge_trees
from training.recipe import HydraRecipe, MedusaRecipe, StreamRecipe, TrainingRecipe

_EVALUATION_BATCH = 8


Metadata = Mapping[str, Any]
"""Origin of trained weights, written into the drafter folder: recipe, target and data."""
R = TypeVar("R", bound=TrainingRecipe)
H = TypeVar("H", bound=MedusaRecipe | HydraRecipe | StreamRecipe)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Held-out figures of the finished drafter folder on disk; `acceptance` is empty without greedy answers.

    `extends`: folder of the drafter that this one adds something to; None for a new drafter.
    """

    acceptance: tuple[HeldOutAcceptance, ...] = ()
    exit_coverage: TopKShares = field(default_factory=dict)
    untrained_exit_coverage: TopKShares = field(default_factory=dict)
    extends: Path | None = None


class StatesTask(ABC, Generic[R]):
    """A training task on cached states of the frozen target: a loss, and held-out figures.

    Attributes:
        module: trained, as far as its parameters require gradients.
        head_VD: bfloat16 rows of the `lm_head` that reads the trained states: the target's, in some subclasses another.
        num_conversations: number of training conversations; the following ones are held out.
    """

    module: nn.Module

    def __init__(self, recipe: R, kept_ids: Tensor, states: TargetStates) -> None:
        self.recipe, self.target, self.states = recipe, states.target, states
        self.kept_ids = kept_ids.to(states.device)
        self.head_VD = self.target.lm_head.weight[self.kept_ids].to(torch.bfloat16)
        self.num_conversations = len(states.conversations) - recipe.num_held_out

    @classmethod
    def require_fit(cls, recipe: R, target: Decoder) -> None:
        """Raise `TrainingError` (with the field) or `ModelError` if the recipe does not fit the target."""
        recipe.require_layers(target.config.num_layers)

    def conversation_length(self, index: int) -> int:
        """Return the number of tokens of a conversation."""
        return len(self.states.conversations[index].ids)

    def rate_share(self, name: str) -> float:  # noqa: ARG002
        """Return the factor on the learning rate for a parameter of `module`."""
        return 1.0

    @property
    def held_out(self) -> range:
        """Indices of the held-out conversations."""
        return range(self.num_conversations, len(self.states.conversations))

    def held_out_batches(self) -> Iterator[Sequence[int]]:
        """Yield the held-out indices in batches that fit in memory."""
        for start in range(0, len(self.held_out), _EVALUATION_BATCH):
            yield self.held_out[start : start + _EVALUATION_BATCH]

    def greedy(self, indices: Sequence[int]) -> list[int]:
        """Return those of `indices` whose answers are greedy."""
        return [index for index in indices if self.states.conversations[index].temperature == 0]

    @abstractmethod
    def loss(self, batch: list[int], generator: torch.Generator) -> tuple[Tensor, int]:
        """Return the mean loss on some conversations, and the number of answer positions that it is the mean of."""

    @abstractmethod
    def evaluate(self) -> Mapping[str, float]:
        """Return figures on held-out answers, by name."""

    @abstractmethod
    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Write the drafter folder, and judge the drafter in it; `progress` counts passes over held-out answers."""


_GROWN_ON = 300
"""Number of training conversations that a tree is grown on (it is judged on held-out ones)."""


def grow_tree(ranks: Ranks, num_nodes: int) -> tuple[TreePath, ...]:
    """Return the first `num_nodes` paths of the tree that agrees with a text at most positions.

    `ranks`: rank of the text's token at each level of a tree from each position, [N, K]; -1: not ranked.
    """
    counts: Counter[TreePath] = Counter()
    unranked = (ranks < 0) | (ranks >= MOST_RANKS)
    lengths = np.where(unranked.any(axis=1), unranked.argmax(axis=1), ranks.shape[1])
    for row, length in zip(ranks.tolist(), lengths.tolist(), strict=True):
        counts.update(tuple(row[:stop]) for stop in range(1, length + 1))
    return grow(counts.__getitem__, num_nodes, ranks.shape[1])


def judge_heads(
    ranks: Sequence[Ranks], paths: Sequence[TreePath], sizes: Sequence[int]
) -> tuple[HeldOutAcceptance, ...]:
    """Judge the first nodes of a tree, for several sizes, and last the chain of each level's best token.

    `ranks`: for each answer, as in `grow_tree`, [N, K].
    """
    if not ranks:
        return ()
    depth = ranks[0].shape[1]
    trees = judge_trees([places_along(rows, paths, depth) for rows in ranks], sizes=sizes)
    line = [(0,) * length for length in range(1, depth + 1)]
    (chain,) = judge_trees([places_along(rows, line, depth) for rows in ranks], sizes=(depth,))
    return (*trees, chain.model_copy(update={"tree_size": 0}))


class TreeTask(StatesTask[H]):
    """A task whose drafter drafts a static tree, which is grown on training answers after the training."""

    grows_on_greedy = False
    """Whether trees grow on greedy answers only, if there are any."""

    @abstractmethod
    def ranks(self, drafter: Any, index: int) -> Ranks:
        """Return the rank that each of K levels gives the answer's token, from each of its N positions, [N, K]."""

    @abstractmethod
    def drafter_without_tree(self) -> Any:
        """Return the trained drafter, without a tree."""

    @abstractmethod
    def save_and_load(self, paths: Sequence[TreePath], folder: Path, **origin: Any) -> Any:
        """Write the drafter folder with the tree of these paths, and return the drafter loaded from it."""

    def finish(self, folder: Path, *, target_name: str, metadata: Metadata, progress: ReportCount) -> Judgement:
        """Grow the tree on training answers, save and reload the drafter, and judge it on held-out greedy answers."""
        growing: Sequence[int] = range(max(0, self.num_conversations - _GROWN_ON), self.num_conversations)
        if self.grows_on_greedy:
            growing = self.greedy(growing) or growing
        judging, done = self.greedy(self.held_out), count()

        def ranks_of(drafter: Any, indices: Sequence[int]) -> Iterator[Ranks]:
            for index in indices:
                progress(next(done), len(growing) + len(judging))
                yield self.ranks(drafter, index)

        known = np.concatenate(list(ranks_of(self.drafter_without_tree(), growing)))
        paths = grow_tree(known, self.recipe.num_nodes)
        loaded = self.save_and_load(paths, folder, target=self.target, target_name=target_name, metadata=metadata)
        judged = judge_heads(list(ranks_of(loaded, judging)), loaded.paths, self.recipe.tree_sizes)
        return Judgement(acceptance=judged)
