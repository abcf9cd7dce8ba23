"""Weights as constants of a graph.

They share the memory that the weights are in, and do not keep it: a graph of open sizes reads it as late as at its
first call, so `Constants` have to live as long as what was compiled of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.openvino.library import Node, op, ov
from runtime.backends.openvino.weights.packing import PackedMatrix, memory_of

_TYPES: Final = {FLOAT32: ov.Type.f32, BFLOAT16: ov.Type.bf16, np.dtype(np.float16): ov.Type.f16}


class Constants:
    """Constants of graphs that compute in one type."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self.type = dtype, _TYPES[dtype]
        self._kept: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def matrix(self, matrix: PackedMatrix) -> Node:
        """A matrix to multiply rows with."""
        if matrix.scales is None:
            return self._shared(matrix.values, self.dtype)
        scales, values = self._shared(matrix.scales, self.dtype), self._memory(matrix.values, np.dtype(np.int8))
        if matrix.form == "int8":
            return op.multiply(op.convert(_constant(values, matrix.shape, ov.Type.i8), self.type), scales)
        groups = matrix.scales.shape[1]
        shape = (matrix.shape[0], groups, matrix.shape[1] // groups)
        steps = op.multiply(op.convert(_constant(values.view(np.uint8), shape, ov.Type.i4), self.type), scales)
        return op.reshape(steps, op.constant(list(matrix.shape)), special_zero=False)

    def vector(self, values: NDArray[Any]) -> Node:
        """A bias, in the type of arithmetic."""
        return self._shared(values, self.dtype)

    def scales(self, values: NDArray[Any]) -> Node:
        """The weights of a norm, which is computed in float32."""
        return self._shared(values, FLOAT32)

    def number(self, value: float) -> Node:
        """A number in the type of arithmetic."""
        return op.convert(op.constant(np.float32(value)), self.type)

    def _shared(self, array: NDArray[Any], dtype: np.dtype[Any]) -> Node:
        return _constant(self._memory(array, dtype), array.shape, _TYPES[dtype])

    def _memory(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The memory of an array in a type; it is the same for all graphs."""
        if id(array) not in self._kept:
            self._kept[id(array)] = array, memory_of(array.astype(dtype, copy=False))
        return self._kept[id(array)][1]


def _constant(memory: NDArray[Any], shape: Sequence[int], kind: ov.Type) -> Node:
    return op.constant(ov.Tensor(memory, ov.Shape(list(shape)), kind), shared_memory=True)
