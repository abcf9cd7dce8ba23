"""Static trees: a list of nodes, whose first n entries are the tree of n nodes.

A node is the path of ranks that leads to it: (r1, r2) is the child of rank r2 of the root's child of rank r1. Rank 0 is
the drafter's best candidate.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Path = tuple[int, ...]
Ranks = NDArray[np.int32]
MOST_RANKS = 10
"""Most children of a node."""


def cut(paths: Sequence[Path], size: int, depth: int) -> tuple[Path, ...]:
    """Return the first `size` paths among those no longer than `depth`."""
    return tuple([path for path in paths if len(path) <= depth][:size])


def parents_of(paths: Sequence[Path]) -> tuple[int, ...]:
    """Return for each path the index of its parent, -1 for the root's children.

    Raises `ValueError` where a path is empty, a repeat, or comes before its parent.
    """
    places: dict[Path, int] = {(): -1}
    parents = []
    for place, path in enumerate(paths):
        if path in places or path[:-1] not in places:
            msg = f"path {place} of a tree is {list(path)}: it is empty or a repeat, or comes before its parent"
            raise ValueError(msg)
        parents.append(places[path[:-1]])
        places[path] = place
    return tuple(parents)


def level_rows(paths: Sequence[Path]) -> tuple[int, ...]:
    """Return the number of nodes with children on each level, from the root's: the rows of a pass for each level."""
    inner = {path[:-1] for path in paths}
    depth = max(map(len, paths), default=0)
    return tuple(sum(len(path) == level for path in inner) for level in range(depth))


def grow(share: Callable[[Path], float], num_nodes: int, depth: int, num_ranks: int = MOST_RANKS) -> tuple[Path, ...]:
    """Return the `num_nodes` paths of the largest total share, best first: every step adds the best remaining path.

    `share` returns how often texts follow a path. A node comes after its parent and its better siblings; of paths with
    equal shares, the first in the order of tuples comes first. Paths have at most `depth` ranks below `num_ranks`.
    """
    tree: list[Path] = []
    growing: list[tuple[float, Path]] = [(-share((0,)), (0,))]
    while growing and len(tree) < num_nodes:
        _, best = heappop(growing)
        tree.append(best)
        sibling, child = (*best[:-1], best[-1] + 1), (*best, 0)
        if sibling[-1] < num_ranks:
            heappush(growing, (-share(sibling), sibling))
        if len(child) <= depth:
            heappush(growing, (-share(child), child))
    return tuple(tree)


def places_along(ranks_NK: NDArray[np.integer], paths: Sequence[Path], depth: int) -> Ranks:
    """Return the indices in `paths` of the nodes that a text follows, [N, depth], as acceptance records hold them.

    `ranks_NK[i, level]` is the rank of the text's token `level` places after i among the drafter's candidates, or -1.
    Indices are -1 from the first token that is not in the tree; a tree may be less deep than `depth`.
    """
    num_ranks = 1 + max(int(ranks_NK.max(initial=0)), *(max(path) for path in paths), 0)
    places: dict[Path, int] = {(): len(paths)} | {path: place for place, path in enumerate(paths)}
    # a node or a rank of -1 reads the last row or column, which stays -1
    child = np.full((len(paths) + 2, num_ranks + 1), -1, dtype=np.int32)
    for place, path in enumerate(paths):
        child[places[path[:-1]], path[-1]] = place
    found = np.full((len(ranks_NK), depth), -1, dtype=np.int32)
    node = np.full(len(ranks_NK), len(paths))
    for level in range(min(depth, ranks_NK.shape[1])):
        node = found[:, level] = child[node, ranks_NK[:, level]]
    return found
