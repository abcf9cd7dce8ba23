"""Chooses the roots of branches: likely next tokens of the target, for each row of a window.

A round ends at a row r < len(window) only if the target's token *differs* from the drafted one there. So the drafted
token is skipped, and the next candidate takes its place (Fig. 1 of the paper, arXiv 2510.13161).
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
    """Return the best candidates of each row (ids, best first), at most `roots_per_row[row]`, in row order.

    Roots in `known` are left out and do not count towards that number; rows without candidates get no root.
    """
    roots = []
    for row, (tokens, budget) in enumerate(zip(candidates, roots_per_row, strict=False)):
        skipped = drafted[row] if row < len(drafted) else None
        new_roots = [Root(row, token) for token in tokens if token != skipped and (row, token) not in known]
        roots += new_roots[:budget]
    return tuple(roots)


def rank_without(rank_R: NDArray[np.int64], drafted_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranks that tokens have once the drafted token of each row is left out, as in `choose_roots`.

    Both arguments are ranks among a row's candidates, [R]; a drafted token that is no candidate has a larger rank than
    all candidates.
    """
    return rank_R - (drafted_R < rank_R)
