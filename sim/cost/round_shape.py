"""How wide the operations of a round are, as far as schedule and models decide it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decoding.schedule import DYNAMIC_TREES, Schedule
from decoding.tree_shape import Path, cut, level_rows


class RoundShape(NamedTuple):
    """Rows of a round's operations.

    Attributes:
        num_drafted: tokens in a window; of speculative streaming in all but the first.
        num_exit_roots: branches that the exit starts.
        level_rows: rows of the steps that draft a tree behind the first one, which reads what was committed.
    """

    num_drafted: int
    num_exit_roots: int = 0
    level_rows: tuple[int, ...] = ()


def tree_shape(schedule: Schedule, paths: Sequence[Path]) -> RoundShape:
    """The shape of a tree schedule's rounds; `paths` are the nodes of a static tree.

    Hydra drafts a static tree level by level, Medusa and streams draft it at once.
    """
    depth, top_k = schedule.num_speculative_tokens, schedule.tree_top_k
    if schedule.method in DYNAMIC_TREES:
        return RoundShape(min(schedule.tree_size, pool_size(depth, top_k)), level_rows=(top_k,) * (depth - 1))
    nodes = cut(paths, schedule.tree_size, depth)
    return RoundShape(len(nodes), level_rows=level_rows(nodes)[1:] if schedule.method == "hydra" else ())


def pool_size(depth: int, top_k: int) -> int:
    """Nodes from which a dynamic tree is cut: top_k of the root, and of each of the top_k best nodes of a level."""
    return top_k + (depth - 1) * top_k**2
