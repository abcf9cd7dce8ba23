"""The adapter of an early exit: maps a middle layer's hidden states to estimates of the last layer's."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.models.decoder import rms_norm
from runtime.models.row_invariance import Linear


class ExitAdapter(nn.Module):
    """An affine map, then a residual MLP without gate; before training it is the identity."""

    def __init__(self, hidden_size: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.affine = Linear(hidden_size, hidden_size)
        self.norm = nn.Parameter(torch.ones(hidden_size))
        self.up = Linear(hidden_size, width, bias=False)
        self.down = Linear(width, hidden_size, bias=False)
        with torch.no_grad():
            self.affine.weight.zero_().fill_diagonal_(1)
            self.affine.bias.zero_()
            self.down.weight.zero_()

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map hidden states after the exit layer to states for the target's final norm and head, [B, T, D]."""
        x_BTD = self.affine(x_BTD)
        unit_BTD = rms_norm(x_BTD.to(self.norm.dtype), self.norm, self.eps)
        return x_BTD + self.down(F.silu(self.up(unit_BTD)))  # type: ignore[no-any-return]
