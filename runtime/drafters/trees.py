"""Drafted trees: static ones, and EAGLE-2's dynamic trees (arXiv 2406.16858), which grow where the draft is sure.

The score of a node of a dynamic tree is the draft's log-probability of the path to it. On each level the `top_k` best
nodes are expanded, and at the end the best nodes of all levels are kept; they form a tree, as a child never has a
better score than its parent. Shapes: N positions of a text, K levels, C candidates, D hidden size, R nodes of a level,
F nodes fed; others as in `runtime.models.decoder`.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.messages import Window
from decoding.tree_shape import MOST_RANKS, Path, Ranks, parents_of


def candidates_per_level(paths: Sequence[Path]) -> tuple[int, ...]:
    """Return how many of the best ids a tree needs on each level, the root's children first."""
    depth = max(map(len, paths), default=0)
    return tuple(max(path[level] for path in paths if len(path) > level) + 1 for level in range(depth))


def require_tree(paths: Sequence[Path], depth: int) -> None:
    """Raise `ValueError` for paths that are not the nodes of a tree of at most `depth` levels."""
    parents_of(paths)
    wrong = [path for path in paths if len(path) > depth or not 0 <= min(path) <= max(path) < MOST_RANKS]
    if wrong or not paths:
        found = list(wrong[0]) if wrong else "no entry"
        raise ValueError(f"paths has {found}; expected at most {depth} ranks of 0..{MOST_RANKS - 1}")


def window_of(paths: Sequence[Path], candidates: Sequence[Sequence[int]]) -> Window:
    """Return the window of a tree; all nodes of a level have the same candidates, `candidates[level]`, best first."""
    tokens = tuple(candidates[len(path) - 1][path[-1]] for path in paths)
    return Window(tokens, parents=parents_of(paths))


def following(ids: Sequence[int], start: int, depth: int) -> Tensor:
    """Return the next `depth` tokens from each position of a text, `start` on, [N, depth]; -1 after its end."""
    padded = torch.tensor([*ids[start:], *[-1] * (depth - 1)])
    return padded.unfold(0, depth, 1)


def ranks_by_level(
    ids: Sequence[int], start: int, depth: int, candidates_from: Callable[[int], Iterable[Tensor]]
) -> Ranks:
    """Return the ranks of a text's tokens among the candidates of each level, [N, depth]; -1 if not among them.

    Row i is about drafting at position `start` + i; the tokens before `start` are the prompt. `candidates_from(first)`
    returns each level's candidates for the positions from `first` on, [positions, C]; `first` is at least 2, because
    drafting reads the hidden state of the token before the last.
    """
    wanted_NK = following(ids, start, depth)
    ranks_NK = torch.full_like(wanted_NK, -1)
    first = max(start, 2)
    if first < len(ids):
        for level, candidates_NC in enumerate(candidates_from(first)):
            found_NC = candidates_NC.cpu() == wanted_NK[first - start :, level, None]
            ranks_NK[first - start :, level] = torch.where(found_NC.any(-1), found_NC.int().argmax(-1), -1)
    return ranks_NK.numpy().astype(np.int32)


ROOT = -1


class GrowingTree:
    """A dynamic tree, drafted after `base` slots of a text. Nodes are numbered in the order of their creation.

    `frontier` are the nodes to expand next. `nodes` are those that the known continuation of the text, `text`, passes
    through. The rows fed last are in `rows` by node; `feature_RD` are their features, and `seen_RF` is the additive
    mask over the nodes fed so far.
    """

    def __init__(self, top_k: int, base: int, root_1D: Tensor, text: Sequence[int] = ()) -> None:
        """Args: nodes to expand per level; slots before the tree; the feature of the last one; the text after it."""
        self.top_k = top_k
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.scores: list[float] = []
        self.frontier: list[int] = [ROOT]
        self.base, self.text, self.nodes = base, text, list[int]()
        self.feature_RD, self.seen_RF, self.rows = root_1D, root_1D.new_zeros(1, 0), {ROOT: 0}

    def expand(self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> None:
        """Add children (best first) to the nodes of the frontier, choose the next frontier, and follow the text."""
        first, level = len(self.tokens), len(self.nodes)
        is_followed = level == self.num_levels < len(self.text)
        for parent, ids, values in zip(self.frontier, tokens, log_probs, strict=True):
            above, depth = (0.0, 0) if parent == ROOT else (self.scores[parent], self.depths[parent])
            self.tokens += ids
            self.parents += [parent] * len(ids)
            self.depths += [depth + 1] * len(ids)
            self.scores += [above + value for value in values]
        new = range(first, len(self.tokens))
        self.frontier = sorted(new, key=self._order)[: self.top_k]
        if is_followed:
            parent = self.nodes[-1] if self.nodes else ROOT
            wanted = parent, self.text[level]
            self.nodes += [node for node in new if (self.parents[node], self.tokens[node]) == wanted][:1]

    def next_rows(self) -> tuple[list[int], Tensor]:
        """Make the frontier the rows to feed next; return its tokens and the features of their parents, [R, D]."""
        parent_rows = [self.rows[self.parents[node]] for node in self.frontier]
        itself_RR = self.seen_RF.new_full((len(parent_rows),) * 2, -math.inf).fill_diagonal_(0)
        self.seen_RF = torch.cat([self.seen_RF[parent_rows], itself_RR], dim=1)
        self.rows = {node: row for row, node in enumerate(self.frontier)}
        return [self.tokens[node] for node in self.frontier], self.feature_RD[parent_rows]

    def window(self, size: int) -> Window:
        """Return the best nodes, at most `size` of them, as a window."""
        nodes = self._ranked(self.num_levels)[:size]
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(nodes)}
        return Window(
            tuple(self.tokens[node] for node in nodes), parents=tuple(places[self.parents[node]] for node in nodes)
        )

    def places(self, depth: int) -> list[int]:
        """Return the indices of `nodes` among the best nodes of the first `depth` levels."""
        places = {node: place for place, node in enumerate(self._ranked(depth))}
        return [places[node] for node in self.nodes[:depth]]

    def _ranked(self, depth: int) -> list[int]:
        return sorted((node for node, level in enumerate(self.depths) if level <= depth), key=self._order)

    def _order(self, node: int) -> tuple[float, int, int]:
        """Return the key that sorts nodes best first."""
        return (-self.scores[node], self.depths[node], node)

    @property
    def num_levels(self) -> int:
        """The number of levels so far."""
        return self.depths[-1] if self.depths else 0

    @property
    def is_settled(self) -> bool:
        """Whether further growth changes neither `nodes` nor their indices (`places`)."""
        if self.num_levels == len(self.nodes) < len(self.text) and self.nodes[-1] in self.frontier:
            return False
        # no descendant of the frontier has a better score than the frontier's best node
        return not self.nodes or self.scores[self.frontier[0]] <= self.scores[self.nodes[-1]]
