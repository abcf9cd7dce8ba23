"""A decoder of which one rank holds a share: its heads, its hidden units, its rows of the output head.

It is a `Decoder` of the rank's sizes. The ranks meet inside three matrices: those after attention and after the MLP add
up the ranks' parts; the output head's logits are gathered where all of them are wanted. Embedding, norms and hidden
states are whole on every rank. Everything is dealt out in runs of neighbours, as evenly as it goes: a step takes as
long as the larger share. Shapes: legend of `runtime.models.decoder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from decoding.errors import ModelError
from runtime.arrays import as_tensors, numpy_type
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer, Rotary
from runtime.models.random_weights import fill_at_random
from runtime.models.row_invariance import Linear
from runtime.parallel.group import Group
from runtime.storage.decoder_names import decoder_tensors
from runtime.storage.safetensors_files import joined_parameters, read_arrays


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRange:
    """Neighbours from `start` to before `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def of(cls, whole: int, rank: int, world_size: int) -> Self:
        """The share of a rank in `whole` things."""
        return cls(start=whole * rank // world_size, stop=whole * (rank + 1) // world_size)

    def times(self, size: int) -> IndexRange:
        """The rows of these things, `size` each."""
        return IndexRange(start=self.start * size, stop=self.stop * size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The parts of a decoder that one rank holds: query heads, the key/value heads they read, MLP units, head rows."""

    heads: IndexRange
    kv_heads: IndexRange
    hidden: IndexRange
    vocabulary: IndexRange

    @classmethod
    def of(cls, config: ModelConfig, rank: int, world_size: int) -> Self:
        """Return the share of a rank; raise `ModelError` if the model cannot be split over so many."""
        for name in ("num_heads", "intermediate_size", "vocab_size"):
            if getattr(config, name) < world_size:
                raise ModelError(f"{name} {getattr(config, name)} cannot be split over {world_size} ranks")
        heads, kv_heads = _heads(config, rank, world_size)
        return cls(
            heads=heads,
            kv_heads=kv_heads,
            hidden=IndexRange.of(config.intermediate_size, rank, world_size),
            vocabulary=IndexRange.of(config.vocab_size, rank, world_size),
        )

    def of_config(self, config: ModelConfig) -> ModelConfig:
        """The sizes that the rank's layers and caches have."""
        return replace(
            config, num_heads=len(self.heads), num_kv_heads=len(self.kv_heads), intermediate_size=len(self.hidden)
        )


def _heads(config: ModelConfig, rank: int, world_size: int) -> tuple[IndexRange, IndexRange]:
    num_kv, group = config.num_kv_heads, config.num_queries_per_kv
    if world_size <= num_kv:
        kv_heads = IndexRange.of(num_kv, rank, world_size)
        return kv_heads.times(group), kv_heads
    num_copies, rest = divmod(world_size, num_kv)
    if rest or num_copies > group:
        raise ModelError(
            f"num_kv_heads {num_kv} with {group} query heads each cannot be split over {world_size} ranks; "
            f"possible are 1 to {num_kv} ranks and multiples of {num_kv} up to {config.num_heads}"
        )
    kv_head, copy = divmod(rank, num_copies)
    queries = IndexRange.of(group, copy, num_copies)
    first = kv_head * group
    heads = IndexRange(start=first + queries.start, stop=first + queries.stop)
    return heads, IndexRange(start=kv_head, stop=kv_head + 1)


class ShardedDecoder(Decoder):
    """One rank's share of a decoder; `config` has its sizes, `whole_config` those of the model."""

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

    def __init__(self, config: ModelConfig, rows: IndexRange, group: Group) -> None:
        super().__init__(config.hidden_size, len(rows), bias=False)
        self.rows, self._group = rows, group
        self._counts = [
            len(IndexRange.of(config.vocab_size, rank, group.world_size)) for rank in range(group.world_size)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Logits over the whole vocabulary [..., V], gathered: far more than a choice of the best ids needs."""
        own = self.own_logits(x)
        parts = self._group.gather(F.pad(own, (0, max(self._counts) - own.shape[-1])))
        return torch.cat([part[..., :count] for part, count in zip(parts, self._counts, strict=True)], dim=-1)

    @property
    def ids(self) -> Tensor:
        """Ids of the rank's rows [len(rows)]."""
        return torch.arange(self.rows.start, self.rows.stop, device=self.weight.device)

    def own_logits(self, x: Tensor) -> Tensor:
        """Logits of the rank's rows alone, [..., len(rows)]."""
        return super().forward(x)


def load_sharded_decoder(
    folder: Path, group: Group, *, dtype: torch.dtype, max_position: int | None = None
) -> ShardedDecoder:
    """Load this rank's share of a Hugging Face folder's decoder, on the group's device, without gradients.

    Of every mapped tensor only the rank's rows or columns are read; random weights are made here, other ones than those
    of a whole model. Raises `ModelError` if the model cannot be split over so many ranks or a file or tensor is wrong.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = ShardedDecoder(config, group)
    if config.random_seed is None:
        held = {name for name, _ in decoder.named_parameters(remove_duplicate=False)}
        wanted = {ours: theirs for ours, theirs in decoder_tensors(config).items() if ours in held}
        found = read_arrays(folder, {name for names in wanted.values() for name in names})
        for name, dimension, run, whole in _cuts(config, decoder.share, wanted):
            if name in found:
                found[name] = _cut(found[name], dimension, run, whole, source=f"{folder}: {name}")
        shapes = {name: tuple(weight.shape) for name, weight in decoder.named_parameters(remove_duplicate=False)}
        state = as_tensors(joined_parameters(wanted, shapes, found, numpy_type(dtype), folder=folder))
        decoder.load_state_dict({name: one.to(group.device) for name, one in state.items()}, strict=False, assign=True)
    else:
        fill_at_random(decoder, config.random_seed, dtype, group.device)
    decoder.tie()
    decoder.rotary = Rotary(config, max_position or config.max_position).to(group.device)
    return decoder.eval().requires_grad_(requires_grad=False)


def _cuts(
    config: ModelConfig, share: Share, wanted: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, int, IndexRange, int]]:
    """Every tensor that a rank holds in part: its name, rows (0) or columns (1), which of them, of how many."""
    size = config.head_dim
    heads = share.heads.times(size), config.num_heads * size
    kv_heads = share.kv_heads.times(size), config.num_kv_heads * size
    hidden = share.hidden, config.intermediate_size
    parts = {
        "qkv.": [(0, *heads), (0, *kv_heads), (0, *kv_heads)],
        "out.weight": [(1, *heads)],
        "gate_up.": [(0, *hidden), (0, *hidden)],
        "down.weight": [(1, *hidden)],
        "lm_head.": [(0, share.vocabulary, config.vocab_size)],
    }
    for ours, theirs in wanted.items():
        for part, cuts in parts.items():
            if f".{part}" in f".{ours}":
                yield from ((name, *cut) for name, cut in zip(theirs, cuts, strict=False))


def _cut(array: NDArray[Any], dimension: int, run: IndexRange, whole: int, *, source: str) -> NDArray[Any]:
    if array.ndim <= dimension or array.shape[dimension] != whole:
        shape = list(array.shape)
        raise ModelError(f"{source} has shape {shape}; config.json asks for {whole} in place {dimension}")
    rows = slice(run.start, run.stop)
    return array[rows] if dimension == 0 else np.ascontiguousarray(array[:, rows])
