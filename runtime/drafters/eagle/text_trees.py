"""Dynamic trees on their way, and those after every prefix of a text, for which the same levels of some are one call.

A level of one tree has too few rows for the cores. In a call of several a row has the same bits where linear layers do
not tell multiples of these rows apart (`runtime.models.row_invariance.rows_are_alike`) and each row is attended over
the keys that its slot settles; elsewhere there is a call for every tree.

Shapes: legend of `runtime.drafters.eagle.model`, plus P trees of a call, R nodes of a level, F nodes fed, S slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from runtime.drafters.trees import ROOT, DynamicTree
from runtime.models.kv_cache import KVCache
from runtime.models.row_invariance import RowwiseKeys, Sight, rows_are_alike

if TYPE_CHECKING:
    from runtime.drafters.eagle.drafter import EagleDrafter

_MOST_ROWS: Final = 64
"""Of a call, as many as were compared with calls of fewer."""


class GrowingTree(DynamicTree):
    """A tree after `base` slots of a text; how that goes on, the `text`, is followed through the tree: by `nodes`.

    Of the rows fed last, `rows` by node, there are features `feature_RD` and what they see of the nodes fed so far,
    additive `seen_RF`; keys and values of these nodes are `keys_2KFH` where a call has several trees.
    """

    def __init__(self, top_k: int, base: int, root_1D: Tensor, text: Sequence[int] = ()) -> None:
        """Args: nodes to expand on a level; slots before the tree; the feature of the last; the tokens after it."""
        super().__init__(top_k)
        self.base, self.text, self.nodes = base, text, list[int]()
        self.feature_RD, self.seen_RF, self.rows = root_1D, root_1D.new_zeros(1, 0), {ROOT: 0}
        self.keys_2KFH: Tensor | None = None

    def next_rows(self) -> tuple[list[int], Tensor]:
        """Go on to the nodes of the last level; return their tokens and the features of the nodes above, [R, D]."""
        above = [self.rows[self.parents[node]] for node in self.frontier]
        itself_RR = self.seen_RF.new_full((len(above),) * 2, -math.inf).fill_diagonal_(0)
        self.seen_RF = torch.cat([self.seen_RF[above], itself_RR], dim=1)
        self.rows = {node: row for row, node in enumerate(self.frontier)}
        return [self.tokens[node] for node in self.frontier], self.feature_RD[above]

    def expand(self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> None:
        """Give the last level its children, and follow the text to one of them."""
        level = len(self.nodes)
        is_followed = level == self.num_levels < len(self.text)
        super().expand(tokens, log_probs)
        if is_followed:
            child = self.child(self.nodes[-1] if self.nodes else ROOT, self.text[level])
            self.nodes += [] if child is None else [child]

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

    def places(self, depth: int) -> list[int]:
        """Return the ranks of `nodes` when only the first so many levels are ranked, the best node first."""
        order = [node for node in self.order() if self.depths[node] <= depth]
        places = {node: place for place, node in enumerate(order)}
        return [places[node] for node in self.nodes[:depth]]


def grow_along(
    drafter: EagleDrafter, ids: Sequence[int], feature_TD: Tensor, *, start: int, depth: int, top_k: int
) -> list[GrowingTree]:
    """Grow a tree after every prefix of a text from place `start` on, as far as the text's places in it need.

    The drafter's cache holds the text, `feature_TD` are the head's own of all its slots. Trees have at most `depth`
    levels, and `top_k` nodes are expanded on each.
    """
    trees = []
    for place in range(start, len(ids)):
        base = place - drafter.position(0)
        trees.append(GrowingTree(top_k, base, feature_TD[base - 1 : base], ids[place : place + depth]))
    alike = all(rows_are_alike(layer.weight, top_k) for layer in drafter.head.modules() if isinstance(layer, nn.Linear))
    most = max(1, _MOST_ROWS // top_k) if alike else 1
    growing = trees
    for level in range(depth):
        for first in range(0, len(growing), most):
            together = growing[first : first + most]
            if level:
                _feed(drafter, together)
            _expand(drafter, together, top_k)
        growing = [tree for tree in growing if not tree.is_settled]
    return trees


def _expand(drafter: EagleDrafter, trees: Sequence[GrowingTree], top_k: int) -> None:
    children = zip(*drafter.rank(torch.cat([tree.feature_RD for tree in trees]), top_k), strict=True)
    for tree in trees:
        tokens, log_probs = zip(*islice(children, len(tree.feature_RD)), strict=True)
        tree.expand(tokens, log_probs)


@torch.inference_mode()
def _feed(drafter: EagleDrafter, trees: Sequence[GrowingTree]) -> None:
    ids, features = zip(*[tree.next_rows() for tree in trees], strict=True)
    ids_PR, keys = torch.tensor(ids), _LevelKeys(drafter.cache, trees)
    positions_P1 = torch.tensor([[drafter.position(tree.base + tree.num_levels - 1)] for tree in trees])
    feature_PRD = drafter.head(
        ids_PR, torch.stack(features), positions=positions_P1.expand(ids_PR.shape), mask=None, cache=keys
    )
    for number, tree in enumerate(trees):
        tree.feature_RD, tree.keys_2KFH = feature_PRD[number], keys.own_2PKFH[:, number]


class _LevelKeys(RowwiseKeys):
    """Nodes of a level of some trees: each sees its prefix of the text, its path and itself, where they would lie."""

    def __init__(self, text: KVCache, trees: Sequence[GrowingTree]) -> None:
        self._text_21KSH, self._trees = text.memory.slots[0], trees
        num_rows, num_fed = trees[0].seen_RF.shape
        super().__init__([range(tree.base + num_fed - num_rows, tree.base + num_fed) for tree in trees])

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002  there is one
        new_2PKRH = torch.stack([k_BKTH, v_BKTH])
        before = [tree.keys_2KFH for tree in self._trees if tree.keys_2KFH is not None]
        self.own_2PKFH = torch.cat([torch.stack(before, dim=1), new_2PKRH], dim=3) if before else new_2PKRH
        seen_2PKSH = self._text_21KSH[..., : self._sizes[-1], :].repeat(1, len(self._trees), 1, 1, 1)
        num_fed = self.own_2PKFH.shape[3]
        for number, tree in enumerate(self._trees):
            seen_2PKSH[:, number, :, tree.base : tree.base + num_fed] = self.own_2PKFH[:, number]
        return seen_2PKSH[0], seen_2PKSH[1]

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """See `RowwiseKeys.pieces`."""
        mask_PRS = self._text_21KSH.new_full((len(self._trees), num_rows, self._sizes[-1]), -math.inf)
        for mask_RS, tree in zip(mask_PRS, self._trees, strict=True):
            mask_RS[:, : tree.base] = 0
            mask_RS[:, tree.base : tree.base + tree.seen_RF.shape[1]] = tree.seen_RF
        return self.pieces(mask_PRS, num_queries_per_kv)
