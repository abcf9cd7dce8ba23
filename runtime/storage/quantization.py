"""Weights on disk: matrices as int8 with one scale per output row, everything else as bfloat16.

Shapes: O output rows, I input columns of a matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import torch
from torch import Tensor

from decoding.errors import ModelFormatError
from runtime.models.weights import finite

QUANTIZATION_FORMAT: Final = "int8-symmetric-per-row"
_SCALE = ".scale"
_LARGEST = 127


def quantize_rows(matrix_OI: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 values [O, I], float32 scales [O]): symmetric, a row's largest magnitude becomes 127.

    The error of an element is at most half its row's scale.
    """
    matrix = matrix_OI.detach().float()
    scales = matrix.abs().amax(dim=1) / _LARGEST
    safe = torch.where(scales > 0, scales, torch.ones_like(scales))
    values = (matrix / safe[:, None]).round().clamp(-_LARGEST, _LARGEST)
    return values.to(torch.int8), safe


def dequantize_rows(values_OI: Tensor, scales_O: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix [O, I] that `quantize_rows` approximated."""
    return (values_OI.float() * scales_O[:, None]).to(dtype)


def pack(weights: Mapping[str, Tensor], *, unquantized: Collection[str] = ()) -> dict[str, Tensor]:
    """Tensors to store: `name` and `name.scale` of every matrix, bfloat16 for vectors and `unquantized` names."""
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() == 2 and name not in unquantized:
            packed[name], packed[name + _SCALE] = quantize_rows(weight)
        else:
            packed[name] = weight.detach().to(torch.bfloat16).contiguous()
    return packed


def unpack(
    packed: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], dtype: torch.dtype, *, source: str
) -> dict[str, Tensor]:
    """The weights that `pack` stored, in `dtype`; `shapes` names every weight there must be, and no other.

    Raises:
        ModelFormatError: a tensor is missing, unknown, of a wrong shape or type, or has numbers that are not finite;
            `source` names the file.
    """
    left = dict(packed)
    weights = {}
    for name, shape in shapes.items():
        stored = take(left, name, source)
        if stored.shape != shape:
            raise ModelFormatError(f"{source}: {name} has shape {tuple(stored.shape)}, expected {tuple(shape)}")
        if stored.dtype == torch.int8:
            scales = take(left, name + _SCALE, source)
            if scales.shape != shape[:1] or not scales.is_floating_point():
                msg = f"{source}: {name}{_SCALE} is not one floating-point scale for each of {shape[0]} rows"
                raise ModelFormatError(msg)
            whole = dequantize_rows(stored, scales, dtype)
        elif stored.is_floating_point():
            whole = stored.to(dtype)
        else:
            msg = f"{source}: {name} is stored as {stored.dtype}; expected int8 or a floating-point type"
            raise ModelFormatError(msg)
        weights[name] = finite(whole, name, source=source)
    if left:
        msg = f"{source}: unknown tensor {min(left)!r}; expected only {', '.join(shapes)} and their scales"
        raise ModelFormatError(msg)
    return weights


def take(tensors: dict[str, Tensor], name: str, source: str) -> Tensor:
    """One of the tensors, taken out of them; raises `ModelFormatError` if it is not there."""
    try:
        return tensors.pop(name)
    except KeyError as error:
        raise ModelFormatError(f"{source}: the tensor {name!r} is missing") from error
