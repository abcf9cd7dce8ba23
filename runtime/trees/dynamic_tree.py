"""EAGLE-2's dynamic tree (arXiv 2406.16858): grown where the draft is sure of itself.

Every node is worth the draft's log-probability of the whole path to it. On each level the `top_k` best nodes are
expanded, each by its `top_k` best children; in the end all nodes are ranked again and the best stay. A child is
never worth more than its parent, so the best of any number are a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.messages import Window

ROOT = -1


class DynamicTree:
    """A growing tree. Nodes are numbered as they are made; `frontier` holds those to be expanded next, best first.

    Attributes:
        tokens, parents, depths, scores: of every node; the root's children have parent `ROOT` and depth 1.
        frontier: nodes of the last level, or the root alone.
    """

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.scores: list[float] = []
        self.frontier: list[int] = [ROOT]

    def expand(self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> None:
        """Give every node of the frontier its children, best first, and go on to the best of them all."""
        first = len(self.tokens)
        for parent, ids, values in zip(self.frontier, tokens, log_probs, strict=True):
            above, depth = (0.0, 0) if parent == ROOT else (self.scores[parent], self.depths[parent])
            self.tokens += ids
            self.parents += [parent] * len(ids)
            self.depths += [depth + 1] * len(ids)
            self.scores += [above + value for value in values]
        new = range(first, len(self.tokens))
        self.frontier = sorted(new, key=self.worth)[: self._top_k]

    def worth(self, node: int) -> tuple[float, int, int]:
        """Return the sort key of a node, the best first: score, then depth, then number."""
        return (-self.scores[node], self.depths[node], node)

    def order(self) -> list[int]:
        """All nodes, the best first, parents before children."""
        return sorted(range(len(self.tokens)), key=self.worth)

    def window(self, size: int) -> Window:
        """The best nodes, at most `size` of them."""
        nodes = self.order()[:size]
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(nodes)}
        return Window(
            tuple(self.tokens[node] for node in nodes),
            parents=tuple(places[self.parents[node]] for node in nodes),
        )

    def child(self, node: int, token: int) -> int | None:
        """The child with a token, if there is one."""
        for other, (parent, own) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent == node and own == token:
                return other
        return None
