"""How wide the operations of a round are, as far as schedule and models decide it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decoding.schedule import Schedule
from decoding.tree_shape import Path, cut, level_rows


class RoundShape(NamedTuple):
    """Rows of a round's operations.

    Attributes:
        num_drafted: tokens in the widest window.
        num_exit_roots: branches that the exit starts.
        level_rows: rows of the steps that draft a tree after the first one, which reads what was committed.
    """

    num_drafted: int
    num_exit_roots: int = 0
    level_rows: tuple[int, ...] = ()


def tree_shape(schedule: Schedule, paths: Sequence[Path]) -> RoundShape:
    """The shape of a tree schedule's rounds; `paths` are the nodes of a static tree.

    A static tree is drafted level by level or at once, as the method has it.
    """
    depth, top_k = schedule.num_speculative_tokens, schedule.tree_top_k
    if schedule.traits.has_dynamic_trees:
        return RoundShape(min(schedule.tree_size, pool_size(depth, top_k)), level_rows=(top_k,) * (depth - 1))
    nodes = cut(paths, schedule.tree_size, depth)
    return RoundShape(len(nodes), level_rows=level_rows(nodes)[1:] if schedule.traits.drafts_by_level else ())


def window_widths(schedule: Schedule, shape: RoundShape) -> tuple[int, ...]:
    """Drafted tokens of the windows that rounds may have, ascending.

    A target that drafts itself has nothing to verify at first; text that is searched for may be short or not be there.
    """
    if schedule.traits.drafts_itself:
        return 0, shape.num_drafted
    if schedule.traits.finds_text:
        return tuple(range(shape.num_drafted + 1))
    return (shape.num_drafted,)


def pool_size(depth: int, top_k: int) -> int:
    """Nodes from which a dynamic tree is cut: top_k of the root, and of each of the top_k best nodes of a level."""
    return top_k + (depth - 1) * top_k**2
