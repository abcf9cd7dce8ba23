"""Builds OpenVINO graphs of a decoder's layers and heads, of static or dynamic shape.

The graph of a segment computes what `runtime.models.decoder.Layer` does, and updates keys and values in place. A row's
bits depend only on the row and the keys that it sees: one kernel computes all rows of a call, and masked slots add
zeros. `Constants` share the memory of the weights, and must live until a graph's first call has read them. Shapes:
legend of `runtime.models.decoder`; S slots.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ModelError
from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.lane_device import COMPILED_ARCHITECTURES
from runtime.backends.openvino.library import Node, op, ov
from runtime.backends.openvino.packing import PackedLayer, PackedMatrix, memory_of
from runtime.models.config import ModelConfig

_TYPES: Final = {FLOAT32: ov.Type.f32, BFLOAT16: ov.Type.bf16, np.dtype(np.float16): ov.Type.f16}


_TILE: Final = 32
"""Inputs of bfloat16 that an AMX tile multiplies at once."""


class Constants:
    """The constants of graphs with a type of arithmetic, and one of products with quantised weights.

    An array is converted only once.
    """

    def __init__(self, dtype: np.dtype[Any], dequantised: np.dtype[Any]) -> None:
        self.dtype, self.type, self._dequantised = dtype, _TYPES[dtype], dequantised
        self._kept: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def product(self, x: Node, matrix: PackedMatrix) -> Node:
        """Return the node of rows times a matrix."""
        if matrix.scales is not None:
            x, weight = op.convert(x, _TYPES[self._dequantised]), self._matrix(matrix)
        else:
            x, weight = self._filled(op.convert(x, self.type)), self._filled(self._matrix(matrix))
        return op.matmul(x, weight, transpose_a=False, transpose_b=True)

    def _filled(self, x: Node) -> Node:
        """Return rows of bfloat16 with zeros up to whole tiles: with tiles a rest is summed by the number of rows."""
        shape = x.get_output_partial_shape(0)
        missing = -shape[len(shape) - 1].get_length() % _TILE
        if self.dtype != BFLOAT16 or not missing:
            return x
        ends = [*[0] * (len(shape) - 1), missing]
        return op.pad(x, op.constant([0] * len(shape)), op.constant(ends), "constant", op.constant(0.0, self.type))

    def _matrix(self, matrix: PackedMatrix) -> Node:
        """Return the node of a matrix, which dequantises it if needed."""
        if matrix.scales is None:
            return self.shared(matrix.values, self.dtype)
        dtype, kind = self._dequantised, _TYPES[self._dequantised]
        scales, values = self.shared(matrix.scales, dtype), self._memory(matrix.values, np.dtype(np.int8))
        if matrix.form == "int8":
            return op.multiply(op.convert(_constant(values, matrix.shape, ov.Type.i8), kind), scales)
        groups = matrix.scales.shape[1]
        shape = (matrix.shape[0], groups, matrix.shape[1] // groups)
        steps = op.multiply(op.convert(_constant(values.view(np.uint8), shape, ov.Type.i4), kind), scales)
        return op.reshape(steps, op.constant(list(matrix.shape)), special_zero=False)

    def shared(self, array: NDArray[Any], dtype: np.dtype[Any]) -> Node:
        """Return the node of an array, converted to `dtype`."""
        return _constant(self._memory(array, dtype), array.shape, _TYPES[dtype])

    def _memory(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        if id(array) not in self._kept:
            self._kept[id(array)] = array, memory_of(array.astype(dtype, copy=False))
        return self._kept[id(array)][1]


def _constant(memory: NDArray[Any], shape: Sequence[int], kind: ov.Type) -> Node:
    return op.constant(ov.Tensor(memory, ov.Shape(list(shape)), kind), shared_memory=True)


GRAPH_VERSION: Final = 6
"""To be raised when a graph of the same weights computes differently, so that files compiled before are not used."""

X, COS, SIN, MASK, PLACES, OUT = "x", "cos", "sin", "mask", "places", "out"
ANY: Final = -1
"""A dynamic dimension."""


class SegmentShape(NamedTuple):
    """The layers `start` + 1 to `stop` over `num_rows` rows of each of `num_texts` texts, with `num_slots` KV slots.

    The hidden states after the layers `states`, which are before the last, are further outputs.
    """

    start: int
    stop: int
    num_texts: int = ANY
    num_rows: int = ANY
    num_slots: int = ANY
    states: tuple[int, ...] = ()

    def __str__(self) -> str:
        layers = f"layers {self.start + 1} to {self.stop}"
        if self.num_rows == ANY:
            return layers
        return f"{layers} of {self.num_texts} sequences, {self.num_rows} rows of each and {self.num_slots} KV positions"


def key_name(layer: int, part: int, *, updated: bool = False) -> str:
    """Return the name of a layer's keys (part 0) or values (part 1), as an input or (`updated`) as an output."""
    return f"{'kv'[part]}{layer}{'.updated' if updated else ''}"


def state_name(layer: int) -> str:
    """Return the name of the hidden states after a layer."""
    return f"x{layer}"


def require_architecture(config: ModelConfig) -> None:
    """Raise `ModelError` for a decoder whose architecture is not in `COMPILED_ARCHITECTURES`."""
    if config.architecture not in COMPILED_ARCHITECTURES:
        known = ", ".join(COMPILED_ARCHITECTURES)
        raise ModelError(
            f"architecture {config.architecture} has no OpenVINO graph, as {known} have; "
            "lanes of torch run it, such as cpu0"
        )


def segment_graph(
    config: ModelConfig, layers: Iterable[PackedLayer], shape: SegmentShape, constants: Constants
) -> ov.Model:
    """Return the graph of a segment of these layers."""
    return _Segment(config, shape, constants).build(layers)


def head_graph(head_VD: PackedMatrix, num_rows: int, constants: Constants) -> ov.Model:
    """Return the graph from normalised hidden states [num_rows, D] to logits in float32."""
    x = _input(X, [num_rows, head_VD.shape[1]])
    logits = constants.product(x, head_VD)
    rows = "" if num_rows == ANY else f" of {num_rows} rows"
    return ov.Model([_output(OUT, op.convert(logits, ov.Type.f32))], [x], f"a head{rows}")


_Number = int | float | tuple[int, ...]
"""A constant: a float becomes float32, integers become int64."""


class _Segment:
    def __init__(self, config: ModelConfig, shape: SegmentShape, constants: Constants) -> None:
        self._config, self._shape, self._constants = config, shape, constants
        self._numbers: dict[tuple[type, _Number], Node] = {}
        texts, rows = shape.num_texts, shape.num_rows
        self._x = _input(X, [texts, rows, config.hidden_size])
        self._cos, self._sin = (_input(name, [texts, 1, rows, config.head_dim]) for name in (COS, SIN))
        self._mask = _input(MASK, [texts, 1, rows, shape.num_slots])
        self._places = _input(PLACES, [texts, config.num_kv_heads, rows, 3], ov.Type.i32)
        self._parameters = [self._x, self._cos, self._sin, self._mask, self._places]
        tables = self._cos, self._sin
        self._k_rotation = [op.convert(table, constants.type) for table in tables]
        # the scale of attention is part of the queries' rotation, since multiplying the scores would take longer
        scale = self._number(config.head_dim**-0.5)
        self._q_rotation = [op.convert(op.multiply(table, scale), constants.type) for table in tables]
        repeats = self._number((1, 1, config.num_queries_per_kv, 1))
        self._hidden_slots = op.tile(op.convert(self._mask, constants.type), repeats)
        self._minus_one = op.convert(self._number(-1.0), constants.type)
        self._updated: list[Node] = []
        self._states: list[Node] = []

    def build(self, layers: Iterable[PackedLayer]) -> ov.Model:
        x = op.convert(self._x, self._constants.type)
        for index, layer in enumerate(layers, self._shape.start):
            x = self._layer(x, layer, index)
            if index + 1 in self._shape.states:
                self._states.append(_output(state_name(index + 1), op.convert(x, ov.Type.f32)))
        outputs = [_output(OUT, op.convert(x, ov.Type.f32)), *self._states, *self._updated]
        return ov.Model(outputs, self._parameters, str(self._shape))

    def _layer(self, x: Node, layer: PackedLayer, index: int) -> Node:
        seen = self._attend(self._norm(x, layer, "input_norm"), layer, index)
        x = op.add(x, self._linear(seen, layer, "out"))
        gate_up = self._linear(self._norm(x, layer, "mlp_norm"), layer, "gate_up")
        gate, up = op.split(gate_up, self._number(2), 2).outputs()
        gated = op.multiply(op.multiply(gate, op.sigmoid(gate)), up)
        return op.add(x, self._linear(gated, layer, "down"))

    def _attend(self, x: Node, layer: PackedLayer, index: int) -> Node:
        """Return the output of attention [B, T, N * H]; query heads of a key/value head are rows of one product."""
        config = self._config
        num_heads, num_kv, size = config.num_heads, config.num_kv_heads, config.head_dim
        swapped, parts = self._number((0, 2, 1, 3)), self._number((num_heads, num_kv, num_kv))
        qkv = self._reshape(self._linear(x, layer, "qkv"), 0, 0, num_heads + 2 * num_kv, size)
        q, k, v = op.variadic_split(op.transpose(qkv, swapped), self._number(1), parts).outputs()
        if "q_norm" in layer.vectors:
            q, k = self._norm(q, layer, "q_norm"), self._norm(k, layer, "k_norm")
        q, k = self._rotate(q, self._q_rotation), self._rotate(k, self._k_rotation)
        k, v = (self._store(part, index, y) for part, y in enumerate((k, v)))
        scores = op.matmul(self._reshape(q, 0, num_kv, -1, size), k, transpose_a=False, transpose_b=True)
        shares = op.softmax(op.add(scores, self._hidden_slots), -1)
        seen = self._reshape(op.matmul(shares, v, transpose_a=False, transpose_b=False), 0, num_heads, -1, size)
        return self._reshape(op.transpose(seen, swapped), 0, 0, num_heads * size)

    def _rotate(self, x: Node, rotation: Sequence[Node]) -> Node:
        """Rotate rows [B, heads, T, H] by their positions, in a form that OpenVINO fuses into one operation."""
        cos, sin = rotation
        half = self._config.head_dim // 2
        low, high = op.variadic_split(x, self._number(3), self._number((half, half))).outputs()
        turned = op.concat([op.multiply(high, self._minus_one), low], -1)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    def _store(self, part: int, index: int, new: Node) -> Node:
        """Write keys or values of the rows [B, K, T, H] to their slots; return all slots [B, K, S, H]."""
        config, shape = self._config, self._shape
        kept = _input(
            key_name(index, part),
            [shape.num_texts, config.num_kv_heads, shape.num_slots, config.head_dim],
            self._constants.type,
        )
        self._parameters.append(kept)
        updated = op.scatter_nd_update(kept, self._places, new)
        self._updated.append(_output(key_name(index, part, updated=True), updated))
        return updated

    def _linear(self, x: Node, layer: PackedLayer, name: str) -> Node:
        y = op.convert(self._constants.product(x, layer.matrices[name]), self._constants.type)
        bias = layer.vectors.get(f"{name}.bias")
        return y if bias is None else op.add(y, self._constants.shared(bias, self._constants.dtype))

    def _norm(self, x: Node, layer: PackedLayer, name: str) -> Node:
        wide = op.convert(x, ov.Type.f32)
        mean = op.reduce_mean(op.power(wide, self._number(2.0)), self._number((-1,)), keep_dims=True)
        root = op.sqrt(op.add(mean, self._number(self._config.norm_eps)))
        unit = op.multiply(wide, op.divide(self._number(1.0), root))
        return op.convert(op.multiply(unit, self._constants.shared(layer.vectors[name], FLOAT32)), self._constants.type)

    def _reshape(self, x: Node, *shape: int) -> Node:
        """Reshape; 0 keeps a dimension, -1 is inferred."""
        return op.reshape(x, self._number(shape), special_zero=True)

    def _number(self, value: _Number) -> Node:
        """Return a constant; equal constants share a node, as the time to compile grows with the number of nodes."""
        key = type(value), value
        if key not in self._numbers:
            self._numbers[key] = op.constant(np.array(value, np.float32 if isinstance(value, float) else np.int64))
        return self._numbers[key]


def _input(name: str, shape: Sequence[int], kind: ov.Type = ov.Type.f32) -> Node:
    node = op.parameter(ov.PartialShape(shape), kind)
    node.output(0).set_names({name})
    return node


def _output(name: str, node: Node) -> Node:
    result = op.result(node)
    result.output(0).set_names({name})
    return result
