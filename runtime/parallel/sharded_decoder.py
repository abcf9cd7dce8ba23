"""A decoder split over ranks by tensor parallelism: each rank has some heads and some MLP units of every layer.

The ranks exchange data in three matrices: the output matrices of attention and of the MLP add up the ranks' results,
and each rank computes some rows of `lm_head`, whose logits are gathered. All other parameters are whole on every rank.
Heads, units and rows are split into consecutive ranges, as evenly as possible. Shapes: legend of
`runtime.models.decoder`.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from decoding.errors import ModelError
from runtime.arrays import as_tensors, numpy_type
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer, Rotary
from runtime.models.row_invariance import Linear, linear
from runtime.parallel.group import Group
from runtime.storage.stored_decoder import each_parameter


def run_of(whole: int, rank: int, world_size: int) -> range:
    """Return a rank's range of `whole` things."""
    return range(whole * rank // world_size, whole * (rank + 1) // world_size)


class Share(NamedTuple):
    """A rank's share of every layer: query heads, the key/value heads that they read, and MLP units."""

    heads: range
    kv_heads: range
    hidden: range

    @classmethod
    def of(cls, config: ModelConfig, rank: int, world_size: int) -> "Share":
        """Return the share of a rank; raise `ModelError` if the model cannot be split over `world_size` ranks."""
        for name in ("num_heads", "intermediate_size", "vocab_size"):
            if getattr(config, name) < world_size:
                raise ModelError(f"{name} {getattr(config, name)} cannot be split over {world_size} ranks")
        num_kv, group = config.num_kv_heads, config.num_queries_per_kv
        hidden = run_of(config.intermediate_size, rank, world_size)
        if world_size <= num_kv:
            kv_heads = run_of(num_kv, rank, world_size)
            return cls(range(kv_heads.start * group, kv_heads.stop * group), kv_heads, hidden)
        num_copies, rest = divmod(world_size, num_kv)
        if rest or num_copies > group:
            raise ModelError(
                f"num_kv_heads {num_kv} with {group} query heads each cannot be split over {world_size} ranks; "
                f"possible are 1 to {num_kv} ranks and multiples of {num_kv} up to {config.num_heads}"
            )
        kv_head, copy = divmod(rank, num_copies)
        queries, first = run_of(group, copy, num_copies), kv_head * group
        return cls(range(first + queries.start, first + queries.stop), range(kv_head, kv_head + 1), hidden)

    def of_config(self, config: ModelConfig) -> ModelConfig:
        """Return the config of the rank's layers and KV caches."""
        heads, kv_heads, hidden = map(len, self)
        return replace(config, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=hidden)

    def part(self, name: str, whole: NDArray[Any], config: ModelConfig) -> NDArray[Any]:
        """Return the rank's part of a parameter: rows or columns of a layer's split matrices, else all of it."""
        size, hidden = config.head_dim, _indices(self.hidden)
        heads, kv_heads = _indices(self.heads, size), _indices(self.kv_heads, size)
        keys = config.num_heads * size
        parts = {
            "qkv.": (0, [heads, kv_heads + keys, kv_heads + keys + config.num_kv_heads * size]),
            "out.weight": (1, [heads]),
            "gate_up.": (0, [hidden, hidden + config.intermediate_size] if config.mlp == "gated" else [hidden]),
            "down.weight": (1, [hidden]),
        }
        for kind, (dimension, indices) in parts.items():
            if f".{kind}" in name:
                return np.take(whole, np.concatenate(indices), dimension)
        return whole


def _indices(run: range, size: int = 1) -> NDArray[np.int64]:
    return np.arange(run.start * size, run.stop * size)


class ShardedDecoder(Decoder):
    """One rank's share of a decoder; `config` is that of the share, `whole_config` that of the model."""

    def __init__(self, config: ModelConfig, group: Group) -> None:
        self.share = Share.of(config, group.rank, group.world_size)
        super().__init__(self.share.of_config(config))
        self.whole_config = config
        for layer in cast("Iterable[Layer]", self.layers):
            layer.out = SummedLinear(layer.out, group)
            layer.down = SummedLinear(layer.down, group)
        self.lm_head = GatheredHead(config, group)

    @property
    def shape(self) -> Decoder:
        """A decoder with the whole model's config and embedding but no layers, to check files of exits against."""
        with torch.device("meta"):
            shape = Decoder(replace(self.whole_config, num_layers=0))
        shape.config, shape.embedding.weight = self.whole_config, self.embedding.weight
        return shape


class SummedLinear(Linear):
    """A linear layer over the rank's share of its inputs; the outputs of all ranks are added up."""

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        has_bias = linear.bias is not None and group.rank == 0  # a bias counts once
        super().__init__(linear.in_features, linear.out_features, bias=has_bias)
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, [..., out], for this rank's inputs [..., in]."""
        return self._group.sum(super().forward(x))


class GatheredHead(Linear):
    """The `lm_head`, of which each rank computes some rows."""

    def __init__(self, config: ModelConfig, group: Group) -> None:
        super().__init__(config.hidden_size, config.vocab_size, bias=False)
        self._runs = [run_of(config.vocab_size, rank, group.world_size) for rank in range(group.world_size)]
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        """Return logits over the whole vocabulary [..., V]."""
        run = self._runs[self._group.rank]
        logits = linear(x, self.weight[run.start : run.stop])
        parts = self._group.gather(F.pad(logits, (0, max(map(len, self._runs)) - len(run))))
        return torch.cat([part[..., : len(run)] for part, run in zip(parts, self._runs, strict=True)], dim=-1)


def load_sharded_decoder(folder: Path, group: Group, *, dtype: torch.dtype) -> ShardedDecoder:
    """Load this rank's share of a Hugging Face folder's decoder, on the group's device, without gradients.

    Raises `ModelError` if the model cannot be split over the ranks, or a file or tensor is wrong.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = ShardedDecoder(config, group)
    found = each_parameter(folder, config, numpy_type(dtype))
    state = as_tensors({name: decoder.share.part(name, whole, config) for name, whole in found})
    state = {name: weight.to(group.device) for name, weight in state.items()}
    decoder.load_state_dict(state, strict=False, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config).to(group.device)
    return decoder.eval().requires_grad_(requires_grad=False)
