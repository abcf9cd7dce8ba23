"""Drafted trees: static ones, and EAGLE-2's dynamic one (arXiv 2406.16858), grown where the draft is sure.

Every node of a dynamic tree is worth the draft's log-probability of the whole path to it; on each level the `top_k`
best are expanded, and in the end the best of all stay: a child is never worth more than its parent, so they are a tree.
Shapes: N places of a text, K levels, C candidates, D hidden size, R nodes of a level, F nodes fed; others as in
`runtime.models.decoder`.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.messages import Window
from decoding.tree_shape import MOST_RANKS, Path, Ranks, parents_of


def candidates_per_level(paths: Sequence[Path]) -> tuple[int, ...]:
    """Return how many of the best ids a tree asks for on every level, the root's children first."""
    depth = max(map(len, paths), default=0)
    return tuple(max(path[level] for path in paths if len(path) > level) + 1 for level in range(depth))


def require_tree(paths: Sequence[Path], depth: int) -> None:
    """Raise a `ValueError` for paths that are not the nodes of a tree of at most `depth` levels."""
    parents_of(paths)
    wrong = [path for path in paths if len(path) > depth or not 0 <= min(path) <= max(path) < MOST_RANKS]
    if wrong or not paths:
        found = list(wrong[0]) if wrong else "no entry"
        raise ValueError(f"paths has {found}; expected at most {depth} ranks of 0..{MOST_RANKS - 1}")


def window_of(paths: Sequence[Path], candidates: Sequence[Sequence[int]]) -> Window:
    """Return the window of a tree whose nodes on a level have the same candidates (`candidates_per_level`)."""
    tokens = tuple(candidates[len(path) - 1][path[-1]] for path in paths)
    return Window(tokens, parents=parents_of(paths))


def following(ids: Sequence[int], start: int, depth: int) -> Tensor:
    """Return the next `depth` tokens of a text from each place on, [N, depth]; -1 after its end."""
    padded = torch.tensor([*ids[start:], *[-1] * (depth - 1)])
    return padded.unfold(0, depth, 1)


def ranks_by_level(
    ids: Sequence[int], start: int, depth: int, candidates_from: Callable[[int], Iterable[Tensor]]
) -> Ranks:
    """Return the rank of every token from `start` on among the best of each level, [N, depth]; -1: none of them.

    All before `start` is the prompt. `candidates_from(place)` gives every level's candidates for the places from one
    on, [places, C]; that is at least 2, because drafting reads the state of the token before the last.
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
    """A dynamic tree after `base` slots of a text; nodes are numbered as they are made, best first on their level.

    `frontier` are those to be expanded next. How the text goes on, `text`, is followed through the tree by `nodes`. Of
    the rows fed last, `rows` by node, there are features `feature_RD` and what they see of the nodes fed so far,
    additive `seen_RF`.
    """

    def __init__(self, top_k: int, base: int, root_1D: Tensor, text: Sequence[int] = ()) -> None:
        """Args: nodes to expand on a level; slots before the tree; the feature of the last; the tokens after it."""
        self.top_k = top_k
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.scores: list[float] = []
        self.frontier: list[int] = [ROOT]
        self.base, self.text, self.nodes = base, text, list[int]()
        self.feature_RD, self.seen_RF, self.rows = root_1D, root_1D.new_zeros(1, 0), {ROOT: 0}

    def expand(self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> None:
        """Give every node of the frontier its children, best first, go on to the best of all, and follow the text."""
        first, level = len(self.tokens), len(self.nodes)
        is_followed = level == self.num_levels < len(self.text)
        for parent, ids, values in zip(self.frontier, tokens, log_probs, strict=True):
            above, depth = (0.0, 0) if parent == ROOT else (self.scores[parent], self.depths[parent])
            self.tokens += ids
            self.parents += [parent] * len(ids)
            self.depths += [depth + 1] * len(ids)
            self.scores += [above + value for value in values]
        new = range(first, len(self.tokens))
        self.frontier = sorted(new, key=self._worth)[: self.top_k]
        if is_followed:
            above_it, token = self.nodes[-1] if self.nodes else ROOT, self.text[level]
            self.nodes += [node for node in new if (self.parents[node], self.tokens[node]) == (above_it, token)][:1]

    def next_rows(self) -> tuple[list[int], Tensor]:
        """Go on to the nodes of the last level; return their tokens and the features of the nodes above, [R, D]."""
        above = [self.rows[self.parents[node]] for node in self.frontier]
        itself_RR = self.seen_RF.new_full((len(above),) * 2, -math.inf).fill_diagonal_(0)
        self.seen_RF = torch.cat([self.seen_RF[above], itself_RR], dim=1)
        self.rows = {node: row for row, node in enumerate(self.frontier)}
        return [self.tokens[node] for node in self.frontier], self.feature_RD[above]

    def window(self, size: int) -> Window:
        """Return the best nodes, at most `size` of them, as a window."""
        nodes = self._ranked(self.num_levels)[:size]
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(nodes)}
        return Window(
            tuple(self.tokens[node] for node in nodes), parents=tuple(places[self.parents[node]] for node in nodes)
        )

    def places(self, depth: int) -> list[int]:
        """Return the ranks of `nodes` when only the first so many levels are ranked, the best node first."""
        places = {node: place for place, node in enumerate(self._ranked(depth))}
        return [places[node] for node in self.nodes[:depth]]

    def _ranked(self, depth: int) -> list[int]:
        return sorted((node for node, own in enumerate(self.depths) if own <= depth), key=self._worth)

    def _worth(self, node: int) -> tuple[float, int, int]:
        return (-self.scores[node], self.depths[node], node)

    @property
    def num_levels(self) -> int:
        """Levels that there are."""
        return self.depths[-1] if self.depths else 0

    @property
    def is_settled(self) -> bool:
        """Whether the places of the nodes that the text follows stay as they are, however the tree grows."""
        if self.num_levels == len(self.nodes) < len(self.text) and self.nodes[-1] in self.frontier:
            return False
        # what grows after the frontier is worth no more than its best
        return not self.nodes or self.scores[self.frontier[0]] <= self.scores[self.nodes[-1]]
