"""Chooses the next tokens of the target that branches prepare for: their roots.

A row r < len(window) ends a round only with a token *other* than the drafted one, so the drafted token is
skipped there and the next candidate takes its place (the paper, arXiv 2510.13161, draws this in its Fig. 1).
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from decoding.messages import Root


def choose_roots(
    drafted: Sequence[int],
    candidates: Sequence[Sequence[int]],
    roots_per_row: Sequence[int],
    *,
    known: Collection[Root] = (),
) -> tuple[Root, ...]:
    """Return the best candidates of every row (ids, best first), at most `roots_per_row[row]` each, in row order.

    Roots of `known` are left out and use no budget; missing rows get no root.
    """
    roots = []
    for row, (tokens, budget) in enumerate(zip(candidates, roots_per_row, strict=False)):
        own = drafted[row] if row < len(drafted) else None
        fresh = [Root(row, token) for token in tokens if token != own and (row, token) not in known]
        roots += fresh[:budget]
    return tuple(roots)


def rank_without(rank_R: NDArray[np.int64], drafted_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranks of tokens among the candidates of their rows without the drafted ones, as in `choose_roots`.

    Both arguments are ranks, [R]; that of a drafted token that is no candidate is beyond all others.
    """
    return rank_R - (drafted_R < rank_R)
