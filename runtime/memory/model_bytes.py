"""Bytes of a decoder: its weights, keys, values and passes, from its shape alone; who plans has no torch."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from runtime.backends.lane_device import Dtype
from runtime.models.config import ModelConfig

ITEM_BYTES: Final[Mapping[Dtype, int]] = {"bfloat16": 2, "float32": 4, "int8": 2, "int4": 2}
"""Of what is computed with: embeddings, keys and values of int8 and int4 lanes are in bfloat16."""
_SCALE_BYTES: Final = 2
_INT4_GROUP: Final = 64
"""Inputs that share a scale in int4 (`runtime.backends.openvino.weights.packing`)."""

_SLOTS_AT_ONCE: Final = 64
"""Slots of a cache come in multiples of `runtime.models.attention.KEYS_AT_ONCE`."""
_PREFILL_ROWS: Final = 512
"""A prompt is read in pieces of so many tokens (`runtime.models.masks.prefill_pieces`)."""


def num_parameters(config: ModelConfig) -> int:
    """Parameters of a decoder: matrices, biases and norms."""
    hidden, head_width = config.hidden_size, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = (2 if config.mlp == "gated" else 1) * config.intermediate_size
    norm = hidden * (2 if config.norm == "layer" else 1)
    layer = config.num_layer_parameters + 2 * norm + 2 * config.head_dim * config.qk_norm
    layer += head_width * config.attention_bias + hidden * config.attention_out_bias + (wide + hidden) * config.mlp_bias
    return config.num_layers * layer + _table_parameters(config) + norm


def weight_bytes(config: ModelConfig, dtype: Dtype) -> int:
    """Bytes of a decoder's parameters, and of its table of rotations in float32.

    Of matrices in int8 and int4 those are counted that graphs hold, next to the embedding, the head that they are made
    of, and the matrices of queries, keys and values, which are joined in memory before they are rounded. Of random
    weights none of these takes any: they stay windows onto one block.
    """
    tables = 2 * config.max_position * config.head_dim * 4
    if dtype not in ("int8", "int4"):
        return num_parameters(config) * ITEM_BYTES[dtype] + tables
    joined = config.num_layers * prod(_layer_matrices(config)[0])
    others = num_parameters(config) - config.num_layers * config.num_layer_parameters
    if config.random_seed is not None:
        joined, others = 0, others - _table_parameters(config)
    # the head costs most to round: it is int8 in both
    head = matrix_bytes(config.vocab_size, config.hidden_size, "int8")
    return matrices_bytes(config, dtype) + head + (joined + others) * ITEM_BYTES[dtype] + tables


def _table_parameters(config: ModelConfig) -> int:
    """Parameters of embedding, head and learned positions."""
    rows = config.vocab_size * (1 if config.tie_embeddings else 2)
    rows += config.max_position + 2 if config.positions == "learned" else 0
    return rows * config.hidden_size


def matrix_bytes(outputs: int, inputs: int, dtype: Dtype) -> int:
    """Bytes of a matrix as graphs hold it."""
    if dtype == "int8":
        return outputs * (inputs + _SCALE_BYTES)
    if dtype == "int4":
        groups = inputs // _INT4_GROUP if inputs % _INT4_GROUP == 0 else 1
        return outputs * inputs // 2 + outputs * groups * _SCALE_BYTES
    return outputs * inputs * ITEM_BYTES[dtype]


def matrices_bytes(config: ModelConfig, dtype: Dtype) -> int:
    """Bytes of the matrices of all layers as graphs hold them."""
    return config.num_layers * sum(matrix_bytes(*shape, dtype) for shape in _layer_matrices(config))


def _layer_matrices(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Outputs and inputs of a layer's matrices: of queries, keys and values; after attention; of the MLP."""
    hidden, wide = config.hidden_size, config.intermediate_size
    heads, width = config.num_heads + 2 * config.num_kv_heads, config.num_heads * config.head_dim
    gates = 2 if config.mlp == "gated" else 1
    return (heads * config.head_dim, hidden), (hidden, width), (gates * wide, hidden), (hidden, wide)


def keys_values_bytes(config: ModelConfig, num_slots: int, dtype: Dtype) -> int:
    """Bytes of keys and values of a text."""
    slots = num_slots + -num_slots % _SLOTS_AT_ONCE
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * slots * ITEM_BYTES[dtype]


def working_bytes(config: ModelConfig, num_rows: int, num_outputs: int, num_tokens: int, dtype: Dtype) -> int:
    """The most that a pass holds at once: states of a layer, and logits of its rows, which are ranked in float32."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = (3 if config.mlp == "gated" else 2) * config.intermediate_size
    row = (3 * config.hidden_size + 2 * heads + wide) * ITEM_BYTES[dtype]
    logits = num_outputs * (ITEM_BYTES[dtype] + 4)
    return max(min(num_tokens, _PREFILL_ROWS) * row, num_rows * (row + logits))
