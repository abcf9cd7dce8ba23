"""Packs weights of layers and heads for graphs: unchanged, int8 with a scale per row, or int4 with a scale per group.

Quantised weights, and 16-bit weights converted to float32, are kept on disk and memory-mapped. A graph makes its own
copy of the weights, after which the file's memory can be freed and the model's weights are no longer needed. Shapes: O
outputs, I inputs, G groups of inputs.
"""

import ctypes
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.lane_device import INT4_GROUP, Dtype
from runtime.backends.openvino.disk_cache import give_back, kept_block
from runtime.storage.stored_decoder import StoredDecoder

_LARGEST: Final[dict[Dtype, int]] = {"int8": 127, "int4": 7}
"""The largest quantised value; quantisation is symmetric."""
_VERSION: Final = 1
"""To be raised when the same weights are quantised differently."""
_AT_ONCE: Final = 1 << 24
"""Weights that are quantised at once, to limit the memory of float32 copies."""
_LEAST_KEPT: Final = 1 << 18
"""Weights of the smallest matrix whose float32 form is kept on disk."""
_MATRICES: Final = ("qkv", "out", "gate_up", "down")
"""The matrices of a layer."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A matrix [O, I] packed for graphs.

    `values` are unquantised [O, I], or a flat array of int8 or of int4 pairs. `scales` are bfloat16, [O, 1] for int8 or
    [O, G, 1] for int4; None for unquantised values. `block` is the memory-mapped file of all of it, or None.
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
        """Free the memory of a memory-mapped file, once a graph has its own copy."""
        if self.block is not None:
            give_back(self.block)

    def digest(self) -> str:
        """Return a digest of the values and scales."""
        return digest_of(self.values) + ("" if self.scales is None else digest_of(self.scales))


def arithmetic(form: Dtype, half: np.dtype[Any] = BFLOAT16) -> np.dtype[Any]:
    """Return the type of arithmetic and of keys and values; `half` is the device's 16-bit type."""
    return FLOAT32 if form == "float32" else half


def packed(weight_OI: NDArray[Any], form: Dtype, dtype: np.dtype[Any]) -> PackedMatrix:
    """Return a matrix packed in a weight format, from disk if possible; `dtype` is the type of unquantised values."""
    shape = weight_OI.shape[0], weight_OI.shape[1]
    if form == "int4" and shape[1] % 2:
        form = "int8"  # products of several rows with int4 rows of an odd size are wrong (OpenVINO 2026.4)
    if form not in _LARGEST:
        if weight_OI.itemsize < dtype.itemsize and weight_OI.size >= _LEAST_KEPT:
            return _widened(weight_OI, form)
        return PackedMatrix(form, shape, weight_OI.astype(dtype, copy=False))
    scales_shape = (shape[0], _num_groups(shape[1], form), 1) if form == "int4" else (shape[0], 1)
    size = prod(shape) // (2 if form == "int4" else 1)
    key = f"{_VERSION} {form} {INT4_GROUP} {digest_of(weight_OI)}"
    block = kept_block(key, size + 2 * prod(scales_shape), lambda: _stored(weight_OI, form, size, prod(scales_shape)))
    values, scales = (np.asarray(part) for part in (block[:size].view(np.int8), block[size:].view(BFLOAT16)))
    return PackedMatrix(form, shape, values, scales.reshape(scales_shape), block)


def _widened(weight_OI: NDArray[Any], form: Dtype) -> PackedMatrix:
    """Return a matrix in float32, memory-mapped from disk so that its memory can be freed."""
    key = f"{_VERSION} float32 {digest_of(weight_OI)}"
    block = kept_block(key, 4 * weight_OI.size, lambda: [weight_OI.astype(np.float32)])
    values = np.asarray(block.view(np.float32)).reshape(weight_OI.shape)
    return PackedMatrix(form, (weight_OI.shape[0], weight_OI.shape[1]), values, block=block)


def quantized(weight_OI: NDArray[Any], form: Dtype) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Return a matrix quantised to integers [O, G, I / G], and bfloat16 scales [O, G, 1]; G is 1 for int8."""
    rows, inputs = weight_OI.shape
    return _to_steps(weight_OI.astype(np.float32).reshape(rows, _num_groups(inputs, form), -1), _LARGEST[form])


def packed_int4(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return int4 values as pairs in a byte, the first in its lower half."""
    low, high = values.reshape(-1, 2).T
    return (low & 15 | high << 4).astype(np.int8)


def memory_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with contiguous memory; bfloat16 is viewed as int16, as OpenVINO takes it."""
    array = np.ascontiguousarray(array)
    return array.view(np.int16) if array.dtype == BFLOAT16 else array


def digest_of(array: NDArray[Any]) -> str:
    """Return a digest of an array's shape and numbers; numbers that overlapping rows share are read once."""
    whole = hashlib.sha256(str((array.shape, array.strides, array.dtype.name)).encode())
    whole.update(np.atleast_1d(memory_of(_numbers(array))).data)
    return whole.hexdigest()


def _num_groups(inputs: int, form: Dtype) -> int:
    return inputs // INT4_GROUP if form == "int4" and inputs % INT4_GROUP == 0 else 1


def _stored(weight_OI: NDArray[Any], form: Dtype, num_bytes: int, num_scales: int) -> list[NDArray[Any]]:
    values, scales = np.empty(num_bytes, np.int8), np.empty(num_scales, BFLOAT16)
    value = scale = 0
    at_once = 2 * max(1, _AT_ONCE // (2 * weight_OI.shape[1]))
    for start in range(0, len(weight_OI), at_once):
        steps, part_scales = _rounded(weight_OI[start : start + at_once], form)
        part = packed_int4(steps) if form == "int4" else steps.reshape(-1)
        values[value : value + part.size] = part
        scales[scale : scale + part_scales.size] = part_scales.reshape(-1)
        value, scale = value + part.size, scale + part_scales.size
    return [memory_of(values), memory_of(scales)]


def _rounded(rows_OI: NDArray[Any], form: Dtype) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Return `quantized` of some rows; rows that overlap in memory (random weights) are quantised by a single scale."""
    numbers = _numbers(rows_OI)
    if numbers is rows_OI:
        return quantized(rows_OI, form)
    steps, scale = _to_steps(numbers.astype(np.float32), _LARGEST[form])
    step, num_scales = rows_OI.strides[0] // rows_OI.itemsize, len(rows_OI) * _num_groups(rows_OI.shape[1], form)
    return np.lib.stride_tricks.as_strided(steps, rows_OI.shape, (step, 1)), scale.repeat(num_scales)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return the shared memory of rows that overlap, [N], and any other array unchanged."""
    if array.ndim != 2 or array.strides[1] != array.itemsize:
        return array
    step, size = array.strides[0] // array.itemsize, array.shape[1]
    if not 0 < step < size:
        return array
    return np.lib.stride_tricks.as_strided(array, ((len(array) - 1) * step + size,), (array.itemsize,))


def _to_steps(weight: NDArray[np.float32], largest: int) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Return integers up to `largest`, and for each vector of the last dimension its scale, rounded first."""
    scale = (np.abs(weight).max(axis=-1, keepdims=True) / np.float32(largest)).astype(BFLOAT16)
    scale[scale == 0] = 1
    return (weight / scale.astype(np.float32)).round().clip(-largest, largest).astype(np.int8), scale


class PackedLayer:
    """The packed matrices and the vectors of a layer, by their names in `runtime.models.decoder`."""

    def __init__(self, layer: dict[str, NDArray[Any]], form: Dtype, dtype: np.dtype[Any]) -> None:
        """Take the weights of a layer, from which matrices that are quantised are removed."""
        is_quantised = form in _LARGEST
        take = layer.pop if is_quantised else layer.__getitem__
        self.matrices = {name: packed(take(f"{name}.weight"), form, dtype) for name in _MATRICES}
        self.vectors = {name: array for name, array in layer.items() if array.ndim == 1}
        if is_quantised:
            give_back_freed()

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed matrices."""
        return sum(matrix.num_bytes for matrix in self.matrices.values())

    def digest(self) -> str:
        """Return a digest of all weights."""
        matrices = (f"{name} {matrix.digest()}" for name, matrix in self.matrices.items())
        return " ".join([*matrices, *(f"{name} {digest_of(self.vectors[name])}" for name in sorted(self.vectors))])


class PackedLayers:
    """The packed weights of a decoder's layers, each packed on first use."""

    def __init__(self, stored: StoredDecoder, form: Dtype, dtype: np.dtype[Any]) -> None:
        self._layers, self._form, self._dtype = stored.layers, form, dtype
        self._packed: dict[int, PackedLayer] = {}

    def __getitem__(self, index: int) -> PackedLayer:
        if index not in self._packed:
            self._packed[index] = PackedLayer(self._layers[index], self._form, self._dtype)
        return self._packed[index]


def give_back_freed() -> None:
    """Return freed memory to the system, as glibc may keep it; does nothing with another C library."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
