"""The weights of layers and heads in the forms of graphs: as they are, int8 with a scale for every row, int4 of groups.

Rounded ones are kept on disk and mapped from there. A graph repacks what it is given: then the file's memory can be
given back, and the model's own weights are needed no longer. Shapes: O outputs, I inputs, G groups of inputs.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.lane_device import Dtype
from runtime.backends.openvino.kept_files import give_back, kept_block
from runtime.storage.stored_decoder import StoredDecoder

_LARGEST: Final = 127
_LARGEST_INT4: Final = 7
_GROUP: Final = 64
"""Inputs that share a scale in int4; a matrix whose inputs are no multiple of it has one scale for a row."""
_VERSION: Final = 1
"""Raised whenever the same weights are rounded otherwise."""
_AT_ONCE: Final = 1 << 24
"""Weights that are rounded at once: copies of them in float32 are all that it takes besides the result."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A matrix [O, I] as graphs hold it: values [O, I] as they are, or int8 in a row, or int4 two to a byte.

    `scales`, in bfloat16, are of rows [O, 1] or groups [O, G, 1]; `block` holds both. Values as they are have neither.
    """

    form: Dtype
    shape: tuple[int, int]
    values: NDArray[Any]
    scales: NDArray[Any] | None = None
    block: NDArray[np.uint8] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def give_back(self) -> None:
        """Let go of memory that is on disk too: a graph has what it needs of it."""
        if self.block is not None:
            give_back(self.block)

    def digest(self) -> str:
        """Return what tells it from others."""
        return digest_of(self.values) + ("" if self.scales is None else digest_of(self.scales))


def arithmetic(form: Dtype, half: np.dtype[Any] = BFLOAT16) -> np.dtype[Any]:
    """Return the type of arithmetic, keys and values: `half` is the device's type of 16 bits."""
    return FLOAT32 if form == "float32" else half


def packed(weight_OI: NDArray[Any], form: Dtype, dtype: np.dtype[Any]) -> PackedMatrix:
    """A matrix in a form, `dtype` being that of values which are not rounded; from disk if it was made before."""
    shape = weight_OI.shape[0], weight_OI.shape[1]
    if form not in ("int8", "int4"):
        return PackedMatrix(form, shape, weight_OI.astype(dtype, copy=False))
    scales_shape = (shape[0], _num_groups(shape[1]), 1) if form == "int4" else (shape[0], 1)
    size = prod(shape) // (2 if form == "int4" else 1)
    key = f"{_VERSION} {form} {_GROUP} {digest_of(weight_OI)}"
    block = kept_block(key, size + 2 * prod(scales_shape), lambda: _stored(weight_OI, form, size, prod(scales_shape)))
    values, scales = (np.asarray(part) for part in (block[:size].view(np.int8), block[size:].view(BFLOAT16)))
    return PackedMatrix(form, shape, values, scales.reshape(scales_shape), block)


def quantized(weight_OI: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Symmetric int8 [O, I], and the scale of every row [O, 1] in bfloat16, which is rounded before it is used."""
    return _to_steps(weight_OI.astype(np.float32), _LARGEST)


def quantized_int4(weight_OI: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Symmetric int4 of groups as int8 [O, G, I / G], and the scale of every group [O, G, 1] in bfloat16."""
    rows, inputs = weight_OI.shape
    return _to_steps(weight_OI.astype(np.float32).reshape(rows, _num_groups(inputs), -1), _LARGEST_INT4)


def packed_int4(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Two values to a byte, the first in its lower half."""
    low, high = values.reshape(-1, 2).T
    return (low & 15 | high << 4).astype(np.int8)


def memory_of(array: NDArray[Any]) -> NDArray[Any]:
    """The memory of an array in one piece; OpenVINO takes bfloat16 as integers of its bits."""
    array = np.ascontiguousarray(array)
    return array.view(np.int16) if array.dtype == BFLOAT16 else array


def digest_of(array: NDArray[Any]) -> str:
    """Return what tells an array from others: of rows that share numbers each number is looked at once."""
    whole = hashlib.sha256(str((array.shape, array.strides, array.dtype.name)).encode())
    whole.update(np.atleast_1d(memory_of(_numbers(array))).data)
    return whole.hexdigest()


def _num_groups(inputs: int) -> int:
    return inputs // _GROUP if inputs % _GROUP == 0 else 1


def _stored(weight_OI: NDArray[Any], form: Dtype, num_bytes: int, num_scales: int) -> list[NDArray[Any]]:
    values, scales = np.empty(num_bytes, np.int8), np.empty(num_scales, BFLOAT16)
    value = scale = 0
    at_once = 2 * max(1, _AT_ONCE // (2 * weight_OI.shape[1]))
    for start in range(0, len(weight_OI), at_once):
        steps, own_scales = _rounded(weight_OI[start : start + at_once], form)
        own = packed_int4(steps) if form == "int4" else steps.reshape(-1)
        values[value : (value := value + len(own))] = own
        scales[scale : (scale := scale + own_scales.size)] = own_scales.reshape(-1)
    return [memory_of(values), memory_of(scales)]


def _rounded(rows_OI: NDArray[Any], form: Dtype) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Steps of some rows, and their scales: one for all where rows share numbers, which are rounded once then."""
    numbers = _numbers(rows_OI)
    if numbers is rows_OI:
        return (quantized_int4 if form == "int4" else quantized)(rows_OI)
    steps, scale = _to_steps(numbers.astype(np.float32), _LARGEST_INT4 if form == "int4" else _LARGEST)
    groups = _num_groups(rows_OI.shape[1]) if form == "int4" else 1
    step = rows_OI.strides[0] // rows_OI.itemsize
    return np.lib.stride_tricks.as_strided(steps, rows_OI.shape, (step, 1)), scale.repeat(len(rows_OI) * groups)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """All numbers that an array is made of: of rows that overlap in memory each once, else the array itself."""
    if array.ndim != 2 or array.strides[1] != array.itemsize:
        return array
    step, size = array.strides[0] // array.itemsize, array.shape[1]
    if not 0 < step < size:
        return array
    return np.lib.stride_tricks.as_strided(array, ((len(array) - 1) * step + size,), (array.itemsize,))


def _to_steps(weight: NDArray[np.float32], largest: int) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Whole steps up to `largest`, and the step of every part of the last dimension."""
    scale = (np.abs(weight).max(axis=-1, keepdims=True) / np.float32(largest)).astype(BFLOAT16)
    scale[scale == 0] = 1
    return (weight / scale.astype(np.float32)).round().clip(-largest, largest).astype(np.int8), scale


_LINEARS: Final = ("qkv", "out", "gate_up", "down")


class PackedLinear(NamedTuple):
    """A matrix and what is added to its products."""

    matrix: PackedMatrix
    bias: NDArray[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """All weights of a layer, its matrices in the form of the graph; names are those of `runtime.models.decoder`."""

    input_norm: NDArray[Any]
    qkv: PackedLinear
    q_norm: NDArray[Any] | None
    k_norm: NDArray[Any] | None
    out: PackedLinear
    mlp_norm: NDArray[Any]
    gate_up: PackedLinear
    down: PackedLinear

    @property
    def matrices(self) -> Iterator[PackedMatrix]:
        """All four."""
        return (getattr(self, name).matrix for name in _LINEARS)

    @property
    def num_bytes(self) -> int:
        """Bytes of its matrices, as a graph holds them."""
        return sum(matrix.num_bytes for matrix in self.matrices)

    def digest(self) -> str:
        """Return what tells the layer from others."""
        biases = [getattr(self, name).bias for name in _LINEARS]
        vectors = [self.input_norm, self.q_norm, self.k_norm, self.mlp_norm, *biases]
        return " ".join(
            [*(matrix.digest() for matrix in self.matrices), *("" if v is None else digest_of(v) for v in vectors)]
        )


class LayersTaken:
    """The weights of a decoder's layers, taken when first asked for; the decoder loses matrices that are rounded."""

    def __init__(self, stored: StoredDecoder, form: Dtype, dtype: np.dtype[Any]) -> None:
        self._layers, self._form, self._dtype = stored.layers, form, dtype
        self._taken: dict[int, LayerWeights] = {}

    def __getitem__(self, index: int) -> LayerWeights:
        if index not in self._taken:
            self._taken[index] = _taken(self._layers[index], self._form, self._dtype)
            if self._form in ("int8", "int4"):
                give_back_freed()
        return self._taken[index]


def give_back_freed() -> None:
    """Have the C library give back what was freed, where it can be asked to: glibc keeps it between smaller blocks."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _taken(layer: dict[str, NDArray[Any]], form: Dtype, dtype: np.dtype[Any]) -> LayerWeights:
    take = layer.pop if form in ("int8", "int4") else layer.__getitem__
    linears = {
        name: PackedLinear(packed(take(f"{name}.weight"), form, dtype), layer.get(f"{name}.bias")) for name in _LINEARS
    }
    return LayerWeights(
        input_norm=layer["input_norm"],
        mlp_norm=layer["mlp_norm"],
        q_norm=layer.get("q_norm"),
        k_norm=layer.get("k_norm"),
        **linears,
    )
