"""Growing a static tree from what heads get right, and judging heads with their tree.

At every step the path is added that agrees with the text most often (Medusa, arXiv 2401.10774, section 2.3.3): the
share of a path is that of places where all its ranks occur together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from decoding.progress import ReportCount
from decoding.tree_shape import Path
from runtime.drafters.trees import MOST_RANKS, Ranks, grow, places_along
from training.judging.drafter_acceptance import HeldOutAcceptance, judge_trees
from training.tasks.states_task import Judgement, StatesTask

_GROWN_ON = 300
"""Training conversations that a tree is grown on: held-out ones judge it."""

RanksOf = Callable[[int], Ranks]
"""Ranks that heads give the answer tokens of a conversation given by index, [answer tokens, K]."""


def grow_tree(ranks: Ranks, num_nodes: int) -> tuple[Path, ...]:
    """Return the first nodes of the tree that agrees with most of a text, by ranks [N, K] of its tokens; -1: none."""
    counts: Counter[Path] = Counter()
    unranked = (ranks < 0) | (ranks >= MOST_RANKS)
    lengths = np.where(unranked.any(axis=1), unranked.argmax(axis=1), ranks.shape[1])
    for row, length in zip(ranks.tolist(), lengths.tolist(), strict=True):
        counts.update(tuple(row[:stop]) for stop in range(1, length + 1))
    return grow(counts.__getitem__, num_nodes, ranks.shape[1])


def judge_heads(ranks: Sequence[Ranks], paths: Sequence[Path], sizes: Sequence[int]) -> tuple[HeldOutAcceptance, ...]:
    """Acceptance of beginnings of a tree of several sizes, then of the chain of every level's best, by ranks [N, K]."""
    if not ranks:
        return ()
    depth = ranks[0].shape[1]
    trees = judge_trees([places_along(rows, paths, depth) for rows in ranks], sizes=sizes)
    line = [(0,) * length for length in range(1, depth + 1)]
    (chain,) = judge_trees([places_along(rows, line, depth) for rows in ranks], sizes=(depth,))
    return (*trees, replace(chain, tree_size=0))


class TreeAnswers:
    """The answers that the tree of trained heads grows on, and the held-out greedy ones that it is judged on."""

    def __init__(self, task: StatesTask[Any], progress: ReportCount, *, greedy_only: bool = False) -> None:
        """Args: the trained task; reports progress before every answer; whether to grow on greedy answers alone."""
        self._growing: Sequence[int] = range(max(0, task.num_conversations - _GROWN_ON), task.num_conversations)
        if greedy_only:
            self._growing = task.greedy(self._growing)
        self._judging, self._progress = task.greedy(task.held_out), progress

    def grow(self, ranks_of: RanksOf, num_nodes: int) -> tuple[Path, ...]:
        """The first nodes of the tree that agrees with most of the training answers."""
        return grow_tree(np.concatenate(self._ranks(ranks_of, self._growing, 0)), num_nodes)

    def judge(self, ranks_of: RanksOf, paths: Sequence[Path], sizes: Sequence[int]) -> Judgement:
        """Rounds on the held-out answers with beginnings of the tree of these nodes."""
        ranks = self._ranks(ranks_of, self._judging, len(self._growing))
        return Judgement(acceptance=judge_heads(ranks, paths, sizes))

    def _ranks(self, ranks_of: RanksOf, indices: Sequence[int], num_done: int) -> list[Ranks]:
        ranks = []
        for done, index in enumerate(indices, num_done):
            self._progress(done, len(self._growing) + len(self._judging))
            ranks.append(ranks_of(index))
        return ranks
