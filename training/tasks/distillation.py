"""Distillation over a large vocabulary at the price of one product each way.

The cross-entropy to a teacher's softmax t of a student that reads out through fixed rows W is `logsumexp(W x) - x . (W'
t)`: the teacher matters through its mean row `W' t` alone, computed once for all students of a position. Shapes: M
rows, D hidden size, V kept output tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ROWS_PER_PIECE = 256
"""Small enough for a piece's logits to stay in the cache of a core."""


@torch.no_grad()
def mean_rows(final_MD: Tensor, head_VD: Tensor) -> Tensor:
    """The mean of the head's rows under the softmax of a teacher whose head reads `final_MD`, [M, D]."""
    pieces = torch.split(final_MD.to(head_VD.dtype), _ROWS_PER_PIECE)
    return torch.cat([(piece @ head_VD.T).softmax(-1) @ head_VD for piece in pieces])


def cross_entropy_to_mean_rows(x_MD: Tensor, mean_MD: Tensor, head_VD: Tensor) -> Tensor:
    """Mean cross-entropy of the student `head_VD @ x` to `mean_rows`' teacher; the gradient goes to `x_MD` alone."""
    loss: Tensor = _CrossEntropy.apply(x_MD, mean_MD, head_VD)  # type: ignore[no-untyped-call]
    return loss


def decayed_mean(losses: Sequence[Tensor], decay: float) -> Tensor:
    """The mean of losses of which each weighs `decay` times the one before it."""
    weights = [decay**place for place in range(len(losses))]
    weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    return torch.stack(weighted).sum() / sum(weights)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, mean_MD: Tensor, head_VD: Tensor) -> Tensor:
        total = torch.zeros((), device=x_MD.device)
        gradients = []
        pieces = torch.split(x_MD.to(head_VD.dtype), _ROWS_PER_PIECE), torch.split(mean_MD, _ROWS_PER_PIECE)
        for x, mean in zip(*pieces, strict=True):
            logits = x @ head_VD.T
            probs = logits.softmax(-1)
            largest, place = logits.max(-1, keepdim=True)
            log_total = largest.float() - probs.gather(-1, place).float().log()
            total += log_total.sum() - (x.float() * mean.float()).sum()
            gradients.append((probs @ head_VD).float() - mean.float())
        count = max(len(x_MD), 1)
        ctx.save_for_backward((torch.cat(gradients) / count).to(x_MD.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0], None, None
