"""A decoder of which one rank holds a share: its heads, its hidden units, its rows of the output head.

It is a `Decoder` of the rank's sizes. What differs is where the ranks meet, and that is inside three matrices: those
after attention and after the MLP add up the ranks' parts, so there are two sums a layer; the output head's logits are
gathered where all of them are wanted (`runtime.parallel.sharded_top_k` where the best are enough). The embedding and
the norms are whole on every rank, and so are hidden states. Shapes: legend of `runtime.models.decoder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer
from runtime.models.row_invariance import Linear
from runtime.parallel.group import Group
from runtime.parallel.shares import Run, Share


class ShardedDecoder(Decoder):
    """One rank's share of a decoder; `config` has its sizes, `whole_config` those of the model.

    Raises:
        ModelError: the model cannot be split over the group's ranks.
    """

    lm_head: ShardedHead

    def __init__(self, config: ModelConfig, group: Group) -> None:
        self.share = Share.of(config, group.rank, group.world_size)
        super().__init__(self.share.of_config(config))
        self.whole_config, self.group = config, group
        for layer in cast("Iterable[Layer]", self.layers):
            layer.out = SummedLinear(layer.out, group)
            layer.down = SummedLinear(layer.down, group)
        self.lm_head = ShardedHead(config, self.share.vocabulary, group)
        self.tie()

    def tie(self) -> None:
        """Take the rank's rows of the embedding for its output head, if the model has one matrix for both."""
        if self.whole_config.tie_embeddings:
            rows = self.share.vocabulary
            own = self.embedding.weight.detach()[rows.start : rows.stop]
            self.lm_head.weight = nn.Parameter(own, requires_grad=False)

    @property
    def shape(self) -> Decoder:
        """The model as files for it see it: whole sizes, and the embedding that all ranks have; no layers."""
        with torch.device("meta"):
            shape = Decoder(self.whole_config)
        shape.embedding.weight = self.embedding.weight
        return shape


class SummedLinear(Linear):
    """A linear layer over the rank's share of its inputs: the ranks' outputs added up."""

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        # a bias counts once
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None and group.rank == 0)
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] of the rank's [..., in]."""
        return self._group.sum(super().forward(x))


class ShardedHead(Linear):
    """The rank's rows of the output head."""

    def __init__(self, config: ModelConfig, rows: Run, group: Group) -> None:
        super().__init__(config.hidden_size, len(rows), bias=False)
        self.rows, self._group = rows, group
        self._counts = [len(Run.of(config.vocab_size, rank, group.world_size)) for rank in range(group.world_size)]

    def forward(self, x: Tensor) -> Tensor:
        """Logits over the whole vocabulary [..., V], gathered: far more than a choice of the best ids needs."""
        own = self.own_logits(x)
        parts = self._group.gather(F.pad(own, (0, max(self._counts) - own.shape[-1])))
        return torch.cat([part[..., :count] for part, count in zip(parts, self._counts, strict=True)], dim=-1)

    @property
    def ids(self) -> Tensor:
        """Of the rank's rows [len(rows)]."""
        return torch.arange(self.rows.start, self.rows.stop, device=self.weight.device)

    def own_logits(self, x: Tensor) -> Tensor:
        """Logits of the rank's rows alone, [..., len(rows)]."""
        return super().forward(x)
