"""The best ids of a row of logits, in an order that does not depend on how many rows were ranked together."""

from __future__ import annotations

import torch
from torch import Tensor

_ALL_BUT_SIGN = 0x7FFF_FFFF


def ranked_ids(logits_RV: Tensor, count: int) -> Tensor:
    """The `count` best ids of every row [R, count], best first; of equal logits the lower id goes first.

    The first column is `argmax`. Plain `topk` leaves the order of equal logits open, and in bfloat16 logits are
    often equal.
    """
    vocab_size = logits_RV.shape[-1]
    bits = (logits_RV.float() + 0.0).view(torch.int32)  # adding zero makes -0.0 the equal of 0.0
    ordered = torch.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits).long()
    ids = torch.arange(vocab_size, device=logits_RV.device)
    return (ordered * vocab_size - ids).topk(count, dim=-1).indices
