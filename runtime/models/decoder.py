"""A transformer in torch for the Llama, Mistral, Qwen and OPT families, which can run some of its layers.

Families differ in positions (rotary or learned), norms (RMS norm or LayerNorm) and the MLP's activation. Shape legend:
B sequences, T rows of this call, S key/value rows that they see, D hidden size, N query heads, K key/value heads, G
query heads per key/value head, H head dimension, V vocabulary.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.models.config import LEARNED_OFFSET, ModelConfig
from runtime.models.row_invariance import LayerKeys, Linear, Sight, WithinCall
from runtime.storage.stored_decoder import each_parameter, rotary_tables

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the rows' positions."""


class Rotary(nn.Module):
    """Rotary position embedding, by float32 tables; for learned positions they rotate by nothing."""

    cos_PH: Tensor
    sin_PH: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if is_unfilled():
            tables = [torch.empty(config.max_position, config.head_dim) for _ in range(2)]
        else:
            tables = list(map(as_tensor, rotary_tables(config)))
        for name, table_PH in zip(("cos_PH", "sin_PH"), tables, strict=True):
            self.register_buffer(name, table_PH, persistent=False)

    def forward(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation:
        """Return cosines and sines [T, 1, H] of positions [T], or [B, T, 1, H] of [B, T]."""
        return self.cos_PH[positions_T].unsqueeze(-2).to(dtype), self.sin_PH[positions_T].unsqueeze(-2).to(dtype)


class Layer(nn.Module):
    """One pre-norm block: grouped-query attention, then an MLP; in ReLU MLPs `gate_up` has no gate."""

    linear: type[nn.Linear] = Linear
    """Class of the matrices."""

    def __init__(self, config: ModelConfig, input_size: int | None = None) -> None:
        """Args: `input_size` is the width of the rows that attention reads, if it is not the hidden size."""
        super().__init__()
        self.config = config
        self.is_rotary = config.positions == "rotary"
        self.activation = gated_silu if config.mlp == "gated" else F.relu
        width = config.num_heads * config.head_dim
        heads = config.num_heads + 2 * config.num_kv_heads
        self.input_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.input_norm_bias = norm_bias(config)
        self.qkv = self.linear(input_size or config.hidden_size, heads * config.head_dim, bias=config.attention_bias)
        self.q_norm = nn.Parameter(torch.ones(config.head_dim)) if config.qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(config.head_dim)) if config.qk_norm else None
        self.out = self.linear(width, config.hidden_size, bias=config.attention_out_bias)
        self.mlp_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.mlp_norm_bias = norm_bias(config)
        num_parts = 2 if config.mlp == "gated" else 1
        self.gate_up = self.linear(config.hidden_size, num_parts * config.intermediate_size, bias=config.mlp_bias)
        self.down = self.linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x_BTD: Tensor, rotary: Rotation, sight: Sight, cache: LayerKeys, index: int) -> Tensor:
        """Return hidden states after this layer [B, T, D]; keys and values go to layer `index` of the cache."""
        attended = normalise(x_BTD, self.input_norm, self.input_norm_bias, self.config.norm_eps)
        return self.finish(x_BTD, cache.attend(index, *self.project(attended, rotary), sight))

    def project(self, x: Tensor, rotary: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [..., N, H] and keys [..., K, H], and values [..., K, H], of normalised rows."""
        config, num_kv = self.config, self.config.num_kv_heads
        qkv = self.qkv(x).unflatten(-1, (-1, config.head_dim))
        qk, v = qkv.split_with_sizes([config.num_heads + num_kv, num_kv], dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split_with_sizes([config.num_heads, num_kv], dim=-2)
            q = rms_norm(q, self.q_norm.to(q.dtype), config.norm_eps)
            k = rms_norm(k, self.k_norm.to(k.dtype), config.norm_eps)
            qk = torch.cat([q, k], dim=-2)
        if self.is_rotary:
            qk = rotate(qk, *rotary)
        q, k = qk.split_with_sizes([config.num_heads, num_kv], dim=-2)
        return q, k, v

    def finish(self, x: Tensor, seen: Tensor) -> Tensor:
        """Return hidden states after this layer [..., D], from those before it and attention's output [..., N * H]."""
        x = x + self.out(seen)
        unit = normalise(x, self.mlp_norm.to(x.dtype), self.mlp_norm_bias, self.config.norm_eps)
        return x + self.down(self.activation(self.gate_up(unit)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A decoder-only language model whose layers can be run in slices."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = new_embedding(config.vocab_size, config.hidden_size)
        self.positions = None
        if config.positions == "learned":
            self.positions = new_embedding(config.max_position + LEARNED_OFFSET, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.final_norm_bias = norm_bias(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.embedding.weight
        self.rotary = Rotary(config)

    def run_layers(
        self,
        x_BTD: Tensor,
        start: int,
        stop: int,
        *,
        positions: Tensor,
        mask: Tensor | None = None,
        cache: LayerKeys | None = None,
    ) -> Tensor:
        """Run layers `start` + 1 to `stop` (counted from 1), and return the hidden states after them, [B, T, D].

        `positions` are positions in the text, [T] or [B, T]. `mask` is additive, broadcastable to [B, 1, T, S]; for
        None see `LayerKeys.sight` of the cache. Without a cache, rows see only the rows of this call.
        """
        if self.positions is not None and start == 0 < stop:
            x_BTD = x_BTD + self.positions(positions + LEARNED_OFFSET)
        keys = WithinCall() if cache is None else cache
        rotary = self.rotary(positions, x_BTD.dtype)
        sight = keys.sight(mask, x_BTD.shape[1], self.config.num_queries_per_kv)
        return self._through(x_BTD, range(start, stop), rotary, sight, keys)

    def _through(self, x_BTD: Tensor, layers: Iterable[int], *seen: object) -> Tensor:
        for index in layers:
            x_BTD = self.layers[index](x_BTD, *seen, index)
        return x_BTD

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return logits [B, T, V] in the weights' dtype, after the final norm and the output head."""
        return self.lm_head(self.normalise(x_BTD))  # type: ignore[no-any-return]

    def normalise(self, x_BTD: Tensor) -> Tensor:
        """Return hidden states [B, T, D] after the final norm, which the output head reads."""
        return normalise(x_BTD, self.final_norm, self.final_norm_bias, self.config.norm_eps)


def is_unfilled() -> bool:
    """Return whether modules get their weights later (meta device); drawing some would import torch's compiler."""
    return torch.get_default_device().type == "meta"


def new_embedding(num_rows: int, size: int) -> nn.Embedding:
    """Return an untrained embedding [num_rows, size]."""
    table = torch.empty(num_rows, size)
    if not is_unfilled():
        table.normal_()
    return nn.Embedding(num_rows, size, _weight=table)


def norm_bias(config: ModelConfig) -> nn.Parameter | None:
    """Return the bias of a norm; None in families without one."""
    return nn.Parameter(torch.zeros(config.hidden_size)) if config.norm == "layer" else None


def normalise(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalise the last dimension: by LayerNorm with a bias, by RMS norm without."""
    return rms_norm(x, weight, eps) if bias is None else F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def gated_silu(x: Tensor) -> Tensor:
    """Return the activation of a gated MLP [..., I] of gate and value, which are concatenated in `x`, [..., 2 * I]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide the last dimension by its root mean square, and multiply by a weight."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [B, T, heads, H] by its positions (half-split layout of Hugging Face)."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def causal_mask(num_rows: int, dtype: torch.dtype, *, context: int = 0) -> Tensor:
    """Return an additive mask [T, context + T], in which row t sees the context and rows 0..t."""
    full = torch.full((num_rows, context + num_rows), -math.inf, dtype=dtype)
    return full.triu_(diagonal=context + 1)


def load_decoder(folder: Path, *, dtype: torch.dtype, with_layers: bool = True) -> Decoder:
    """Return a Hugging Face folder's decoder, without gradients; arguments and errors as in `each_parameter`."""
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = Decoder(config)
    if not with_layers:
        decoder.layers = nn.ModuleList()
    weights = as_tensors(dict(each_parameter(folder, config, numpy_type(dtype), with_layers=with_layers)))
    decoder.load_state_dict(weights, strict=False, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config)
    return decoder.eval().requires_grad_(requires_grad=False)
