"""Medusa-1 heads (arXiv 2401.10774): what follows the next token, from the target's last hidden state alone.

Other than in the paper, each head has a trained square projection (it starts as the identity) in place of a head of its
own, and reads out through the target's rows of the kept vocabulary. Shapes: legend of `runtime.models.decoder`, plus M
rows, K heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from runtime.drafters.head_drafter import KeptRowHeads
from runtime.models.vocabulary import OutputRows


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaConfig:
    """Sizes: heads (head k, from 1, proposes the token k + 1 places on), blocks of each, the kept vocabulary."""

    num_heads: int
    num_blocks: int
    vocab_size: int


class MedusaHead(nn.Module):
    """Residual blocks x + SiLU(Wx + b), then x + Px; starts as the identity, for W, b and P start at zero."""

    def __init__(self, hidden_size: int, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_blocks))
        self.projection = nn.Linear(hidden_size, hidden_size, bias=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x_MD: Tensor) -> Tensor:
        """Normalised last hidden states -> states for the target's output head, [M, D]."""
        for block in self.blocks:
            x_MD = x_MD + F.silu(block(x_MD))
        return x_MD + self.projection(x_MD)  # type: ignore[no-any-return]


class MedusaModel(KeptRowHeads):
    """K heads over one reduced vocabulary."""

    def __init__(self, hidden_size: int, config: MedusaConfig) -> None:
        super().__init__(hidden_size, config.vocab_size)
        self.config, self.num_heads = config, config.num_heads
        self.heads = nn.ModuleList(MedusaHead(hidden_size, config.num_blocks) for _ in range(config.num_heads))

    def forward(self, x_MD: Tensor, num_heads: int) -> list[Tensor]:
        """Normalised last hidden states [M, D] -> logits of the first heads over the ids of `output`, [M, V] each."""
        return [self.output.logits(head(x_MD)) for head in self.heads[:num_heads]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedHead:
    """One head as published: weight [D, D] and bias [D] of every block, and the output matrix [V, D]."""

    blocks: tuple[tuple[Tensor, Tensor], ...]
    output_VD: Tensor

    def __call__(self, x_MD: Tensor) -> Tensor:
        """Normalised last hidden states -> logits, [M, V]."""
        for weight, bias in self.blocks:
            x_MD = x_MD + F.silu(F.linear(x_MD, weight, bias))
        return x_MD @ self.output_VD.T


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedMedusa:
    """All heads of a published checkpoint, to be called like a `MedusaModel`."""

    heads: tuple[PublishedHead, ...]
    output: OutputRows
    target_norm: Tensor

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return len(self.heads)

    def __call__(self, x_MD: Tensor, num_heads: int) -> list[Tensor]:
        """Return logits of the first heads over the whole vocabulary, [M, V] each."""
        return [head(x_MD) for head in self.heads[:num_heads]]
