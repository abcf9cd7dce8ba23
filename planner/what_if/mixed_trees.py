"""Places in drafted trees by a better or worse draft than the recorded one; see `planner.what_if.mixed_record`.

A tree knows a token if one of its nodes is that token. A token that is forgotten is in no tree; one that is learned
is the best child of the node before it, and after it the tree goes on as the one that was recorded there begins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.record import Ids

NOWHERE = -1


def mixed_ranks(ranks: Ids, share: float, draws: NDArray[np.float64]) -> Ids:
    """The places of the mixed draft's nodes, [N, depth].

    Args:
        ranks: places of the nodes that follow the text from every position on, [N, depth].
        share: of the tokens that are known to be forgotten (below zero), or of the unknown ones to be learned.
        draws: one number in 0..1 for each token of the text: the lowest change first, [N].
    """
    num_tokens, depth = ranks.shape
    positions = np.arange(num_tokens)
    begins = np.concatenate([ranks[:, 0], [NOWHERE]])
    mixed = np.full_like(ranks, NOWHERE)
    last = np.full(num_tokens, NOWHERE)
    goes_on = np.ones(num_tokens, dtype=np.bool_)
    is_recorded = np.ones(num_tokens, dtype=np.bool_)
    for place in range(depth):
        token = np.minimum(positions + place, num_tokens)
        draw = np.append(draws, 1.0)[token]
        recorded = np.where(
            is_recorded, ranks[:, place], np.where(begins[token] < 0, NOWHERE, last + 1 + begins[token])
        )
        knows = recorded >= 0
        is_learned = ~knows & (draw < share)
        goes_on &= np.where(knows, draw >= -share, is_learned) & (token < num_tokens)
        last = np.where(is_learned, last + 1, recorded)
        mixed[goes_on, place] = last[goes_on]
        # After a learned token the tree of this position holds nothing more.
        is_recorded &= ~is_learned
    return mixed
