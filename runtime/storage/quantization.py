"""Weights on disk: matrices [O, I] as int8 with one scale per output row, everything else as bfloat16."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ModelFormatError
from runtime.arrays import BFLOAT16, Array, as_array, as_tensors, is_floating, is_tensor
from runtime.storage.safetensors_files import finite, joined_parameters

if TYPE_CHECKING:
    import torch

QUANTIZATION_FORMAT: Final = "int8-symmetric-per-row"
_SCALE = ".scale"
_LARGEST = 127

Arrays = Mapping[str, NDArray[Any]]
A = TypeVar("A")


def quantize_rows(matrix_OI: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 values [O, I] and float32 scales [O]; an element's error is at most half its row's scale."""
    matrix = matrix_OI.astype(np.float32)
    scales = np.abs(matrix).max(axis=1) / np.float32(_LARGEST)
    safe = np.where(scales > 0, scales, np.float32(1))
    values = np.round(matrix / safe[:, None]).clip(-_LARGEST, _LARGEST)
    return values.astype(np.int8), safe


def dequantize_rows(values_OI: NDArray[np.int8], scales_O: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the matrix [O, I] that `quantize_rows` approximated."""
    with np.errstate(over="ignore", invalid="ignore"):  # the reader checks the numbers that come out
        return (values_OI.astype(np.float32) * scales_O.astype(np.float32)[:, None]).astype(dtype)


def pack(weights: Mapping[str, Array], *, unquantized: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the arrays to store: `name` and `name.scale` of matrices, bfloat16 of vectors and `unquantized` names."""
    packed: dict[str, NDArray[Any]] = {}
    for name, weight in weights.items():
        own = as_array(weight) if is_tensor(weight) else weight
        if own.ndim == 2 and name not in unquantized:
            packed[name], packed[name + _SCALE] = quantize_rows(own)
        else:
            packed[name] = own.astype(BFLOAT16)
    return packed


def unpack(
    packed: Arrays, shapes: Mapping[str, Sequence[int]], dtype: np.dtype[Any], *, source: str
) -> dict[str, NDArray[Any]]:
    """Return the weights that `pack` stored, in `dtype`; `shapes` names every weight there must be, and no other.

    Raises `ModelFormatError`, with `source`, for a missing, unknown or wrong tensor or numbers that are not finite.
    """
    left = dict(packed)
    weights = {}
    for name, shape in shapes.items():
        stored = take(left, name, source)
        if stored.shape != tuple(shape):
            raise ModelFormatError(f"{source}: {name} has shape {stored.shape}, expected {tuple(shape)}")
        if stored.dtype == np.int8:
            scales = take(left, name + _SCALE, source)
            if scales.shape != tuple(shape[:1]) or not is_floating(scales):
                msg = f"{source}: {name}{_SCALE} is not one floating-point scale for each of {shape[0]} rows"
                raise ModelFormatError(msg)
            whole = dequantize_rows(stored, scales, dtype)
        elif is_floating(stored):
            with np.errstate(over="ignore", invalid="ignore"):
                whole = stored.astype(dtype)
        else:
            msg = f"{source}: {name} is stored as {stored.dtype}; expected int8 or a floating-point type"
            raise ModelFormatError(msg)
        weights[name] = finite(whole, name, source=source)
    if left:
        msg = f"{source}: unknown tensor {min(left)!r}; expected only {', '.join(shapes)} and their scales"
        raise ModelFormatError(msg)
    return weights


def take(tensors: dict[str, A], name: str, source: str) -> A:
    """Remove and return one of the tensors; raises `ModelFormatError` if it is not there."""
    try:
        return tensors.pop(name)
    except KeyError as error:
        raise ModelFormatError(f"{source}: the tensor {name!r} is missing") from error


def published_parameters(
    wanted: Mapping[str, Sequence[str]],
    shapes: Mapping[str, Sequence[int]],
    tensors: dict[str, NDArray[Any]],
    dtype: np.dtype[Any],
    *,
    path: Path,
) -> dict[str, torch.Tensor]:
    """Return parameters in `shapes`, each put together from all tensors of a file that `wanted` names for it.

    Raises `ModelFormatError` for a tensor that is missing or unknown, and what `joined` raises.
    """
    found = {name: take(tensors, name, str(path)) for theirs in wanted.values() for name in theirs}
    if tensors:
        raise ModelFormatError(f"{path}: unknown tensor {min(tensors)!r}; expected only {', '.join(found)}")
    return as_tensors(dict(joined_parameters(wanted, shapes, found, dtype, folder=path)))
