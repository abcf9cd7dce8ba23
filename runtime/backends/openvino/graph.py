"""A decoder's layers and heads as graphs of static shapes, made from its weights.

One graph is a segment: hidden states, positions and a mask in, hidden states out; keys and values of its layers are
inputs and outputs in the same memory, so they are updated in place and stay in the type of arithmetic. It is the
same computation as `runtime.models.decoder.Layer`, which a test compares it with.

A row's bits depend on nothing but the row and what it sees: every shape is static, so one kernel serves all rows of a
graph, and slots that a row does not see add zeros.

Shapes: legend of `runtime.models.decoder`; S slots, M = B * T rows. Keys lie as [B * K * S, H]: a key's place among
these is worked out outside, so that every row of a batch may go to a slot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from decoding.errors import ModelError
from runtime.backends.openvino.constants import Weights
from runtime.backends.openvino.library import Node, op, ov
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Layer

GRAPH_VERSION: Final = 1
"""Raised whenever a graph of the same weights computes otherwise, so that what was compiled before is not used."""
ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

X, COS, SIN, MASK, PLACES, OUT = "x", "cos", "sin", "mask", "places", "out"


class SegmentShape(NamedTuple):
    """Layers `start` + 1 to `stop` over the rows of some texts, each with so many slots."""

    start: int
    stop: int
    num_texts: int
    num_rows: int
    num_slots: int

    def __str__(self) -> str:
        return (
            f"layers {self.start + 1} to {self.stop} of {self.num_texts} texts, "
            f"{self.num_rows} rows of each and {self.num_slots} slots"
        )


def key_name(layer: int, part: int, *, updated: bool = False) -> str:
    """Name of a layer's keys (part 0) or values (part 1), before or after a call."""
    return f"{'kv'[part]}{layer}{'.updated' if updated else ''}"


def segment_graph(decoder: Decoder, shape: SegmentShape, weights: Weights) -> ov.Model:
    """The graph of a segment.

    Raises:
        ModelError: the architecture is none of `ARCHITECTURES`.
    """
    config = decoder.config
    if config.architecture not in ARCHITECTURES:
        raise ModelError(
            f"architecture {config.architecture} has no OpenVINO graph; those of {', '.join(ARCHITECTURES)} have"
        )
    layers = cast("Iterable[Layer]", decoder.layers[shape.start : shape.stop])
    return _Segment(config, shape, weights).build(layers)


def segment_weights(decoder: Decoder, shape: SegmentShape) -> Sequence[Tensor]:
    """All weights that a segment's graph is made of."""
    return [weight for layer in decoder.layers[shape.start : shape.stop] for weight in layer.parameters()]


def head_graph(norm: Tensor | None, eps: float, head_VD: Tensor, num_rows: int, weights: Weights) -> ov.Model:
    """Logits in float32 of hidden states [M, D], which are normalised first if there is a norm."""
    x = _input(X, [num_rows, head_VD.shape[1]])
    hidden = op.convert(x, weights.type)
    if norm is not None:
        hidden = _rms_norm(hidden, norm, eps, weights)
    logits = op.matmul(hidden, weights.head_matrix(head_VD), transpose_a=False, transpose_b=True)
    return ov.Model([_output(OUT, op.convert(logits, ov.Type.f32))], [x], f"a head of {num_rows} rows")


class _Segment:
    """A segment under construction."""

    def __init__(self, config: ModelConfig, shape: SegmentShape, weights: Weights) -> None:
        self._config, self._shape, self._weights = config, shape, weights
        rows = shape.num_texts * shape.num_rows
        self._x = _input(X, [rows, config.hidden_size])
        self._cos, self._sin = (_input(name, [rows, 1, config.head_dim]) for name in (COS, SIN))
        self._mask = _input(MASK, [shape.num_texts, 1, 1, shape.num_rows, shape.num_slots])
        self._places = _input(PLACES, [rows * config.num_kv_heads], ov.Type.i32)
        self._parameters = [self._x, self._cos, self._sin, self._mask, self._places]
        self._rotation = [op.convert(table, weights.type) for table in (self._cos, self._sin)]
        self._hidden_slots = op.convert(self._mask, weights.type)
        self._updated: list[Node] = []

    def build(self, layers: Iterable[Layer]) -> ov.Model:
        """The whole graph."""
        x = op.convert(self._x, self._weights.type)
        for index, layer in enumerate(layers, self._shape.start):
            x = self._layer(x, layer, index)
        return ov.Model([_output(OUT, op.convert(x, ov.Type.f32)), *self._updated], self._parameters, str(self._shape))

    def _layer(self, x: Node, layer: Layer, index: int) -> Node:
        eps = self._config.norm_eps
        seen = self._attend(_rms_norm(x, layer.input_norm, eps, self._weights), layer, index)
        x = op.add(x, self._linear(seen, layer.out))
        gate_up = self._linear(_rms_norm(x, layer.mlp_norm, eps, self._weights), layer.gate_up)
        gate, up = op.split(gate_up, op.constant(1), 2).outputs()
        gated = op.multiply(op.multiply(gate, op.sigmoid(gate)), up)
        return op.add(x, self._linear(gated, layer.down))

    def _attend(self, x: Node, layer: Layer, index: int) -> Node:
        """What rows gather [M, N * H]; the query heads of a key/value head are rows of one product."""
        config, shape = self._config, self._shape
        num_heads, num_kv, size = config.num_heads, config.num_kv_heads, config.head_dim
        texts, rows, group = shape.num_texts, shape.num_rows, config.num_queries_per_kv
        qkv = _reshape(self._linear(x, layer.qkv), [-1, num_heads + 2 * num_kv, size])
        q, k, v = op.variadic_split(qkv, op.constant(1), op.constant([num_heads, num_kv, num_kv])).outputs()
        if layer.q_norm is not None and layer.k_norm is not None:
            q = _rms_norm(q, layer.q_norm, config.norm_eps, self._weights)
            k = _rms_norm(k, layer.k_norm, config.norm_eps, self._weights)
        q, k = self._rotate(q), self._rotate(k)
        k, v = (self._store(part, index, y) for part, y in enumerate((k, v)))
        q = op.transpose(_reshape(q, [texts, rows, num_kv, group, size]), op.constant([0, 2, 3, 1, 4]))
        q = op.multiply(_reshape(q, [texts * num_kv, group * rows, size]), self._weights.number(size**-0.5))
        scores = _reshape(op.matmul(q, k, False, True), [texts, num_kv, group, rows, shape.num_slots])
        shares = op.softmax(op.add(scores, self._hidden_slots), -1)
        shares = _reshape(shares, [texts * num_kv, group * rows, shape.num_slots])
        seen = _reshape(op.matmul(shares, v, False, False), [texts, num_kv, group, rows, size])
        return _reshape(op.transpose(seen, op.constant([0, 3, 1, 2, 4])), [-1, num_heads * size])

    def _rotate(self, x: Node) -> Node:
        cos, sin = self._rotation
        low, high = op.split(x, op.constant(2), 2).outputs()
        return op.add(op.multiply(x, cos), op.multiply(op.concat([op.negative(high), low], 2), sin))

    def _store(self, part: int, index: int, new: Node) -> Node:
        """Write the rows' keys or values [M, K, H] at their places; all slots [B * K, S, H]."""
        config, shape = self._config, self._shape
        num_kv, size = config.num_kv_heads, config.head_dim
        kept = op.parameter([shape.num_texts * num_kv * shape.num_slots, size], self._weights.type)
        kept.output(0).set_names({key_name(index, part)})
        self._parameters.append(kept)
        new = op.transpose(_reshape(new, [shape.num_texts, shape.num_rows, num_kv, size]), op.constant([0, 2, 1, 3]))
        updated = op.scatter_update(kept, self._places, _reshape(new, [-1, size]), op.constant(0))
        self._updated.append(_output(key_name(index, part, updated=True), updated))
        return _reshape(updated, [shape.num_texts * num_kv, shape.num_slots, size])

    def _linear(self, x: Node, layer: nn.Linear) -> Node:
        y = op.matmul(x, self._weights.matrix(layer.weight), transpose_a=False, transpose_b=True)
        return y if layer.bias is None else op.add(y, self._weights.vector(layer.bias))


def _rms_norm(x: Node, scales: Tensor, eps: float, weights: Weights) -> Node:
    """Root-mean-square norm over the last dimension, in float32."""
    wide = op.convert(x, ov.Type.f32)
    mean = op.reduce_mean(op.power(wide, op.constant(np.float32(2))), op.constant([-1]), keep_dims=True)
    root = op.sqrt(op.add(mean, op.constant(np.float32(eps))))
    unit = op.multiply(wide, op.divide(op.constant(np.float32(1)), root))
    return op.convert(op.multiply(unit, weights.scales(scales)), weights.type)


def _reshape(x: Node, shape: Sequence[int]) -> Node:
    return op.reshape(x, op.constant(shape), special_zero=False)


def _input(name: str, shape: Sequence[int], kind: ov.Type = ov.Type.f32) -> Node:
    node = op.parameter(shape, kind)
    node.output(0).set_names({name})
    return node


def _output(name: str, node: Node) -> Node:
    result = op.result(node)
    result.output(0).set_names({name})
    return result
