"""The best ids of a row of logits, in an order that does not depend on how many rows were ranked together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, as_array, as_tensor, is_on_host, is_tensor, wide

if TYPE_CHECKING:
    from torch import Tensor

_ALL_BUT_SIGN = 0x7FFF_FFFF
_SPARE = 24
"""Places looked at beyond those asked for: in bfloat16 the best logits are often equal, seldom so many of them."""


def best_places(logits: Array) -> Array:
    """The place of the best of the last dimension; of equal logits the first."""
    # argmax of bfloat16 is several times slower than converting first
    return wide(logits).argmax(-1)


def ranked_ids(logits_RV: Array, count: int) -> Array:
    """Return the `count` best ids of every row [R, count], best first; of equal logits the lower id goes first.

    Plain top-k leaves the order of equal logits open, and in bfloat16 logits are often equal.
    """
    if not is_tensor(logits_RV):
        return _ranked_array(logits_RV, count)
    if is_on_host(logits_RV):
        return as_tensor(_ranked_array(as_array(wide(logits_RV)), count))
    return _ranked_all(logits_RV, count)  # the question after equals would be a wait of its own


def _ranked_array(logits_RV: NDArray[Any], count: int) -> NDArray[np.int64]:
    first = logits_RV.shape[-1] - count - _SPARE
    if first > 0:
        ids = np.argpartition(logits_RV, first, axis=-1)[:, first:]
        ids.sort(axis=-1)
        values = np.take_along_axis(logits_RV, ids, -1)
        order = np.argsort(-values, axis=-1, kind="stable")
        ends = np.take_along_axis(values, order[:, [count - 1, -1]], -1)
        if (ends[:, 0] > ends[:, 1]).all():  # else equals of the last one asked for may have been left out
            return np.take_along_axis(ids, order[:, :count], -1)
    return np.argsort(-logits_RV, axis=-1, kind="stable")[:, :count]


def _ranked_all(logits_RV: Tensor, count: int) -> Tensor:
    """Rank every id of the vocabulary by one integer that holds the logit and then the id."""
    import torch

    vocab_size = logits_RV.shape[-1]
    bits = (logits_RV.float() + 0.0).view(torch.int32)  # adding zero makes -0.0 the equal of 0.0
    ordered = torch.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits).long()
    ids = torch.arange(vocab_size, device=logits_RV.device)
    return (ordered * vocab_size - ids).topk(count, dim=-1).indices
