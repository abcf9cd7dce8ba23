"""Trees where every level is independent of the others: which nodes they have, and which of them hold a text.

A node is named by the ranks on the way to it (`decoding.tree_shape`); it is worth how often all of them are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Floats, Ints
from decoding.record import Ids
from decoding.schedule import MAX_TREE
from decoding.tree_shape import Path

NOWHERE = -1


def best_paths(rank_rates: Floats, depth: int, size: int = MAX_TREE) -> tuple[Path, ...]:
    """The `size` nodes that are right most often, the best first and every one after its parent and better siblings.

    `rank_rates` are how often the candidate of each rank is right on each level, [levels, ranks].
    """
    paths: list[Path] = []
    waiting: list[tuple[float, Path]] = [(-float(rank_rates[0, 0]), (0,))]
    while waiting and len(paths) < size:
        worth, path = heappop(waiting)
        paths.append(path)
        level, rank = len(path) - 1, path[-1]
        if level + 1 < depth:
            heappush(waiting, (worth * float(rank_rates[level + 1, 0]), (*path, 0)))
        if rank + 1 < rank_rates.shape[1]:
            above = float(np.prod([rank_rates[place, one] for place, one in enumerate(path[:-1])]))
            heappush(waiting, (-above * float(rank_rates[level, rank + 1]), (*path[:-1], rank + 1)))
    return tuple(paths)


def pool_paths(rank_rates: Floats, depth: int, top_k: int) -> tuple[Path, ...]:
    """The nodes from which a dynamic tree is cut, the best first: EAGLE-2's rule (2406.16858) on expected values."""
    frontier: list[tuple[float, Path]] = [(1.0, ())]
    pool: list[tuple[float, Path]] = []
    for level in range(depth):
        children = [
            (worth * float(rank_rates[level, rank]), (*path, rank)) for worth, path in frontier for rank in range(top_k)
        ]
        pool += children
        frontier = sorted(children, key=lambda child: -child[0])[:top_k]
    return tuple(path for _, path in sorted(pool, key=lambda node: (-node[0], len(node[1]))))


def ranks_along(paths: Sequence[Path], rank_NL: Ints) -> Ids:
    """Places in the tree's order of the nodes that hold a text from every position on, [N, levels].

    `rank_NL` are the ranks of the text's tokens where they would stand on each level; a rank that no node has is in no
    tree. After the text's end nothing is right.
    """
    num_tokens, depth = rank_NL.shape
    widest = max(int(rank_NL.max(initial=0)), max((rank for path in paths for rank in path), default=0)) + 1
    child: NDArray[np.int64] = np.full((len(paths) + 1, widest), NOWHERE)
    places: dict[Path, int] = {(): len(paths)} | {path: place for place, path in enumerate(paths)}
    for path, place in list(places.items())[1:]:
        child[places[path[:-1]], path[-1]] = place
    ranks: Ids = np.full((num_tokens, depth), NOWHERE, dtype=np.int32)
    node = np.full(num_tokens, len(paths))
    starts = np.arange(num_tokens)
    for level in range(depth):
        token = starts + level
        goes_on = (node != NOWHERE) & (token < num_tokens)
        node = np.where(goes_on, child[node, rank_NL[np.minimum(token, num_tokens - 1), level]], NOWHERE)
        ranks[:, level] = node
    return ranks
