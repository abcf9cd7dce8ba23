"""Matrices in the forms of graphs: as they are, int8 with a scale for every row, int4 with one for a group of inputs.

Rounded ones are kept on disk, by what they were made of, and mapped from there. A graph repacks what it is given and
keeps that: so the file's memory can be given back then, and the model's own weights are needed no longer.

Shapes: O outputs, I inputs, G groups of inputs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from runtime.backends.openvino.kept_files import Block, kept_block

Form = Literal["float32", "bfloat16", "int8", "int4"]
"""Of weights; int8 and int4 are computed with in the device's type of 16 bits."""

_LARGEST: Final = 127
_LARGEST_INT4: Final = 7
_GROUP: Final = 64
"""Inputs that share a scale in int4; a matrix whose inputs are no multiple of it has one scale for a row."""
_VERSION: Final = 1
"""Raised whenever the same weights are rounded otherwise."""
_AT_ONCE: Final = 1 << 24
"""Weights that are rounded at once: copies of them in float32 are all that it takes besides the result."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix [O, I] as graphs hold it.

    Attributes:
        form: of `values`.
        shape: O and I.
        values: as they are [O, I], or int8 one after the other, or int4, two to a byte.
        scales: of rows [O, 1] or groups [O, G, 1], in bfloat16; None for values as they are.
        block: what holds both; None for values as they are.
    """

    form: Form
    shape: tuple[int, int]
    values: Tensor
    scales: Tensor | None = None
    block: Block | None = None

    @property
    def num_bytes(self) -> int:
        """Of values and scales."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def digest(self) -> str:
        """What tells it from others."""
        return digest_of(self.values) + ("" if self.scales is None else digest_of(self.scales))


def arithmetic(form: Form, half: torch.dtype = torch.bfloat16) -> torch.dtype:
    """What is computed with, and what keys and values are kept in: `half` is the device's type of 16 bits."""
    return torch.float32 if form == "float32" else half


def packed(weight_OI: Tensor, form: Form, dtype: torch.dtype) -> Matrix:
    """A matrix in a form, `dtype` being that of values which are not rounded; from disk if it was made before."""
    weight_OI, shape = weight_OI.detach(), (weight_OI.shape[0], weight_OI.shape[1])
    if form not in ("int8", "int4"):
        return Matrix(form, shape, weight_OI.to(dtype))
    scales_shape = (shape[0], _num_groups(shape[1]), 1) if form == "int4" else (shape[0], 1)
    size = prod(shape) // (2 if form == "int4" else 1)
    key = f"{_VERSION} {form} {_GROUP} {digest_of(weight_OI)}"
    block = kept_block(key, size + 2 * prod(scales_shape), lambda: _stored(weight_OI, form, size, prod(scales_shape)))
    values = torch.from_numpy(block.memory[:size]).view(torch.int8)
    scales = torch.from_numpy(block.memory[size:]).view(torch.bfloat16)
    return Matrix(form, shape, values, scales.view(scales_shape), block)


def quantized(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 [O, I], and the scale of every row [O, 1] in bfloat16.

    The scale is rounded first: so it adds no error of its own.
    """
    return _to_steps(weight_OI.detach().float(), _LARGEST)


def quantized_int4(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int4 of groups as int8 [O, G, I / G], and the scale of every group [O, G, 1] in bfloat16."""
    rows, inputs = weight_OI.shape
    return _to_steps(weight_OI.detach().float().reshape(rows, _num_groups(inputs), -1), _LARGEST_INT4)


def packed_int4(values: Tensor) -> Tensor:
    """Two values to a byte, the first in its lower half."""
    low, high = values.reshape(-1, 2).unbind(dim=1)
    return (low & 15 | high << 4).to(torch.int8)


def memory_of(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor; numpy knows no bfloat16, so its bits are those of an integer."""
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def digest_of(tensor: Tensor) -> str:
    """What tells a tensor from others: of rows that share numbers each number is looked at once."""
    whole = hashlib.sha256(str((tuple(tensor.shape), tensor.stride(), tensor.dtype)).encode())
    whole.update(np.atleast_1d(memory_of(_numbers(tensor))).data)
    return whole.hexdigest()


def _num_groups(inputs: int) -> int:
    return inputs // _GROUP if inputs % _GROUP == 0 else 1


def _stored(weight_OI: Tensor, form: Form, num_bytes: int, num_scales: int) -> list[np.ndarray]:
    """Bytes of the values and of the scales, made of some rows after the other."""
    values, scales = torch.empty(num_bytes, dtype=torch.int8), torch.empty(num_scales, dtype=torch.bfloat16)
    value = scale = 0
    at_once = 2 * max(1, _AT_ONCE // (2 * weight_OI.shape[1]))
    for start in range(0, len(weight_OI), at_once):
        steps, own_scales = _rounded(weight_OI[start : start + at_once], form)
        own = packed_int4(steps) if form == "int4" else steps.reshape(-1)
        values[value : (value := value + len(own))] = own
        scales[scale : (scale := scale + own_scales.numel())] = own_scales.reshape(-1)
    return [memory_of(values), memory_of(scales)]


def _rounded(rows_OI: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """Steps of some rows, and their scales: one for all where rows share numbers, which are rounded once then."""
    numbers = _numbers(rows_OI)
    if numbers is rows_OI:
        return (quantized_int4 if form == "int4" else quantized)(rows_OI)
    steps, scale = _to_steps(numbers.float(), _LARGEST_INT4 if form == "int4" else _LARGEST)
    groups = _num_groups(rows_OI.shape[1]) if form == "int4" else 1
    return steps.as_strided(rows_OI.shape, rows_OI.stride()), scale.expand(len(rows_OI) * groups)


def _numbers(tensor: Tensor) -> Tensor:
    """All numbers that a tensor is made of: of rows that overlap in memory each once, else the tensor itself."""
    if tensor.dim() != 2 or tensor.stride(1) != 1 or not 0 < tensor.stride(0) < tensor.shape[1]:
        return tensor
    return tensor.as_strided(((len(tensor) - 1) * tensor.stride(0) + tensor.shape[1],), (1,))


def _to_steps(weight: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Whole steps up to `largest`, and the step of every part of the last dimension."""
    scale = (weight.abs().amax(dim=-1, keepdim=True) / largest).to(torch.bfloat16)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight / scale.float()).round().clamp(-largest, largest).to(torch.int8), scale
