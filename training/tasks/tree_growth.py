"""Growing a static tree from what heads get right, and judging heads with their tree.

A tree grows greedily (Medusa, arXiv 2401.10774, section 2.3.3): at every step the path is added that stands for the
text most often. Ranks are those that a head gives the text's own tokens, given the text's tokens before them: the
share of a path is that of places where all its ranks occur together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from torch import Tensor

from decoding.tree_shape import Path
from runtime.trees.static_tree import MOST_RANKS, Ranks, grow, places_along
from training.data.states import TargetStates
from training.judging.drafter_acceptance import Acceptance, judge_trees
from training.judging.judgement import Judgement, Progress
from training.tasks.eagle_rows import row_features

GROWN_ON = 300
"""Training conversations that a tree is grown on: held-out ones judge it."""


class RankedHeads(Protocol):
    """Heads that can say how they rank a text's tokens; see `runtime.drafters.medusa.drafter`."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Nodes of their tree in their order."""
        ...

    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Ranks of the text's tokens by place and head, [N, K]."""
        ...


def grow_tree(ranks: Ranks, num_nodes: int) -> tuple[Path, ...]:
    """The first nodes of the tree that stands for most of a text (`runtime.trees.static_tree.grow`).

    Args:
        ranks: by place of a text and level, [N, K]; -1 for a token that is not ranked.
        num_nodes: to grow, as far as K levels have room.
    """
    return grow(_path_counts(ranks).__getitem__, num_nodes, ranks.shape[1])


def judge_heads(ranks: Sequence[Ranks], paths: Sequence[Path], sizes: Sequence[int]) -> tuple[Acceptance, ...]:
    """Acceptance of beginnings of a tree, then of the chain of every level's best.

    Args:
        ranks: of each answer, [N, K].
        paths: nodes of the tree in their order.
        sizes: numbers of nodes.
    """
    if not ranks:
        return ()
    depth = ranks[0].shape[1]
    trees = judge_trees([places_along(rows, paths, depth) for rows in ranks], sizes=sizes)
    line = [(0,) * length for length in range(1, depth + 1)]
    (chain,) = judge_trees([places_along(rows, line, depth) for rows in ranks], sizes=(depth,))
    return (*trees, replace(chain, tree_size=0))


class HeadAnswers:
    """The answers that the tree of trained heads grows on, and the held-out greedy ones that it is judged on."""

    def __init__(self, states: TargetStates, num_training: int, progress: Progress) -> None:
        """Args: what the heads read; conversations from the first on that are not held out; told of every answer."""
        held_out = range(num_training, len(states.conversations))
        self._states, self._progress = states, progress
        self._growing = range(max(0, num_training - GROWN_ON), num_training)
        self._judging = [index for index in held_out if states.conversations[index].temperature == 0]

    def grow(self, heads: RankedHeads, num_nodes: int) -> tuple[Path, ...]:
        """The first nodes of the tree that stands for most of the training answers."""
        return grow_tree(np.concatenate(self._ranks(heads, self._growing, 0)), num_nodes)

    def judge(self, heads: RankedHeads, sizes: Sequence[int]) -> Judgement:
        """Rounds on the held-out answers with beginnings of the heads' tree, which has been grown before."""
        ranks = self._ranks(heads, self._judging, len(self._growing))
        return Judgement(acceptance=judge_heads(ranks, heads.paths, sizes))

    def _ranks(self, heads: RankedHeads, indices: Sequence[int], num_done: int) -> list[Ranks]:
        """Ranks on the answers of the given conversations, [answer tokens, K] each."""
        ranks = []
        layers = (self._states.target.config.num_layers,)
        for done, index in enumerate(indices, num_done):
            self._progress(done, len(self._growing) + len(self._judging))
            row = self._states.conversations[index]
            features = row_features(self._states, [index], layers)
            ranks.append(heads.level_ranks(row.ids, start=len(row.prompt), features_TE=features))
        return ranks


def _path_counts(ranks: Ranks) -> Counter[Path]:
    """For every path the places of the text that it stands for."""
    counts: Counter[Path] = Counter()
    unranked = (ranks < 0) | (ranks >= MOST_RANKS)
    lengths = np.where(unranked.any(axis=1), unranked.argmax(axis=1), ranks.shape[1])
    for row, length in zip(ranks.tolist(), lengths.tolist(), strict=True):
        counts.update(tuple(row[:stop]) for stop in range(1, length + 1))
    return counts
