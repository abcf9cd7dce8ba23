"""Hydra++ heads (arXiv 2402.05109): Medusa's, but each head also sees the tokens drafted before it.

A decoder layer over the target's last hidden states (prefix attention) makes h'_t of h_t; head i proposes the token i +
1 places after t from h'_t and the embeddings of the i tokens between. Other than in the paper, the prefix layer's MLP
is narrower than the target's; a head is a linear map of its inputs and three residual blocks, of which only the first
is its own; the map of an embedding depends on its distance instead of on the head; and all heads read out through the
target's rows of the kept vocabulary. Shapes: legend of `runtime.models.decoder`, plus M rows, K heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.drafters.head_drafter import KeptRowHeads
from runtime.models.attention import WithinCall
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer, Rotary, rms_norm
from runtime.models.kv_cache import KVCache


@dataclass(frozen=True, kw_only=True, slots=True)
class HydraConfig:
    """Sizes: heads, the prefix layer's MLP, each head's own block, the blocks that all heads share, the vocabulary."""

    num_heads: int
    prefix_width: int
    head_width: int
    shared_widths: tuple[int, ...]
    vocab_size: int


class ResidualBlock(nn.Module):
    """x + down(SiLU(up(norm(x)))); starts as the identity, for `down` starts at zero."""

    def __init__(self, hidden_size: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norm = nn.Parameter(torch.ones(hidden_size))
        self.up = nn.Linear(hidden_size, width)
        self.down = nn.Linear(width, hidden_size)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x_MD: Tensor) -> Tensor:
        """Hidden states [M, D] -> [M, D]."""
        unit_MD = rms_norm(x_MD.to(self.norm.dtype), self.norm, self.eps)
        return x_MD + self.down(F.silu(self.up(unit_MD)))  # type: ignore[no-any-return]


class HydraModel(KeptRowHeads):
    """The prefix layer and K heads over one reduced vocabulary."""

    embedding_VD: Tensor

    def __init__(self, target_config: ModelConfig, config: HydraConfig) -> None:
        super().__init__(target_config.hidden_size, config.vocab_size)
        self.config = config
        self.layer_config = replace(target_config, num_layers=1, intermediate_size=config.prefix_width)
        hidden_size, eps = target_config.hidden_size, target_config.norm_eps
        self.prefix = Layer(self.layer_config)
        self.by_distance = nn.ModuleList(
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(config.num_heads)
        )
        for weight in self.by_distance.parameters():
            nn.init.zeros_(weight)
        self.own = nn.ModuleList(ResidualBlock(hidden_size, config.head_width, eps) for _ in range(config.num_heads))
        self.shared = nn.ModuleList(ResidualBlock(hidden_size, width, eps) for width in config.shared_widths)
        self.register_buffer("embedding_VD", torch.zeros(target_config.vocab_size, hidden_size), persistent=False)
        self.rotary = Rotary(self.layer_config, target_config.max_position)

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """See `KeptRowHeads`; the target's embedding is used too."""
        super().share(target, kept_ids)
        self.embedding_VD = target.embedding.weight.detach()
        self.rotary = Rotary(self.layer_config, len(target.rotary.cos_PH)).to(self.embedding_VD.device)

    def read_prefix(
        self, x_BTD: Tensor, *, positions: Tensor, mask: Tensor | None, cache: KVCache | None = None
    ) -> Tensor:
        """Return h' [B, T, D] of the target's normalised last states; arguments as in `Decoder.run_layers`."""
        rotary = self.rotary(positions, x_BTD.dtype)
        keys = WithinCall() if cache is None else cache
        sight = keys.sight(mask, x_BTD.shape[1], self.layer_config.num_queries_per_kv)
        return self.prefix(x_BTD, rotary, sight, keys, 0)  # type: ignore[no-any-return]

    def embed(self, ids_M: Tensor) -> Tensor:
        """Embeddings at unit scale [M, D]: what `forward` sees of a token."""
        rows = self.embedding_VD[ids_M]
        return rms_norm(rows, rows.new_ones(rows.shape[-1]), self.layer_config.norm_eps)

    def forward(self, prefix_MD: Tensor, tokens_MD: Sequence[Tensor]) -> Tensor:
        """Return the states for `head_VD` [M, D] of the head that sees as many tokens as are given, one or more.

        `prefix_MD` is h' of the last known position, `tokens_MD` what `embed` makes of the tokens after it, the last
        one first.
        """
        x_MD = prefix_MD
        for projection, token_MD in zip(self.by_distance, tokens_MD, strict=False):
            x_MD = x_MD + projection(token_MD)
        for block in (self.own[len(tokens_MD) - 1], *self.shared):
            x_MD = block(x_MD)
        return x_MD
