"""The best ids of rows whose logits are spread over ranks: each ranks its own, and the few best are merged.

In place of a gather of the vocabulary a row costs 2 K + 1 numbers a rank. Shapes: T rows, K ids, V the rank's ids.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.models.ranking import ranked_ids
from runtime.parallel.group import Group


class TopK(NamedTuple):
    """The best ids of every row, best first [T, K], and their log-probabilities under the logits of all ranks."""

    ids: Tensor
    log_probs: Tensor


def sharded_top_k(logits_TV: Tensor, ids_V: Tensor, count: int, group: Group) -> TopK:
    """The `count` best of all ranks' ids, on every rank.

    Args:
        logits_TV: of this rank's ids; it may have none.
        ids_V: which they are.
        count: at most as many as all ranks have together.
        group: the ranks.

    Of equal logits those of the lower rank go first, and of one rank's those that come first in `ids_V`: the lower
    id where ranks hold a vocabulary in order.
    """
    logits_TV = logits_TV.float()
    own = min(count, len(ids_V))
    places_TK = ranked_ids(logits_TV, own) if own else ids_V.new_empty(len(logits_TV), 0)
    values = F.pad(logits_TV.gather(-1, places_TK), (0, count - own), value=-math.inf)
    ids = F.pad(ids_V[places_TK], (0, count - own))
    # ids are exact in float64, which also holds float32 as it is: one exchange serves for all
    total = logits_TV.logsumexp(dim=-1, keepdim=True)
    parts = group.gather(torch.cat([values.double(), ids.double(), total.double()], dim=-1))
    values, ids, totals = (torch.cat([part[:, place] for part in parts], dim=-1) for place in _places(count))
    best_TK = values.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    log_probs = values.gather(-1, best_TK) - totals.logsumexp(dim=-1, keepdim=True)
    return TopK(ids.gather(-1, best_TK).long(), log_probs.float())


def _places(count: int) -> tuple[slice, slice, slice]:
    """Of values, ids and totals in what a rank sends."""
    return slice(count), slice(count, 2 * count), slice(2 * count, None)
