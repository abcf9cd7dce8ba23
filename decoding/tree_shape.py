"""Static trees: their nodes as paths of ranks, in the order in which a growing tree adds them.

The path (r1, r2) is the child of rank r2 of the root's child of rank r1; ranks count from 0, best first. The first n
paths are the tree of n nodes.
"""

from collections.abc import Sequence

Path = tuple[int, ...]


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
    """Return the nodes with children on every level, the root's first: rows of passes that draft level by level."""
    inner = {path[:-1] for path in paths}
    depth = max(map(len, paths), default=0)
    return tuple(sum(len(path) == level for path in inner) for level in range(depth))
