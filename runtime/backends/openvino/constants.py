"""Weights as constants of a graph: as they are, as int8 with a scale for every row, or as int4 with one for a group.

Graphs share the memory of what they are made of, so a `Weights` has to live as long as a graph is being compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from runtime.backends.openvino.library import Node, op, ov

Form = Literal["float32", "bfloat16", "int8", "int4"]
"""Of weights; int8 and int4 are computed with in the device's type of 16 bits."""

_LARGEST: Final = 127
_LARGEST_INT4: Final = 7
_GROUP: Final = 64
"""Inputs that share a scale in int4; a matrix whose inputs are no multiple of it has one scale for a row."""
_TYPES: Final = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16, torch.float16: ov.Type.f16}


def arithmetic(form: Form, half: torch.dtype = torch.bfloat16) -> torch.dtype:
    """What is computed with, and what keys and values are kept in: `half` is the device's type of 16 bits."""
    return torch.float32 if form == "float32" else half


def memory_of(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor; numpy knows no bfloat16, so its bits are those of an integer."""
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def quantized(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 [O, I], and the scale of every row [O, 1] in bfloat16.

    The scale is rounded first: so it adds no error of its own.
    """
    weight = weight_OI.detach().float()
    scale = (weight.abs().amax(dim=1, keepdim=True) / _LARGEST).to(torch.bfloat16)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight / scale.float()).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


def quantized_int4(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int4 of groups as int8 [O, G, I / G], and the scale of every group [O, G, 1] in bfloat16."""
    rows, inputs = weight_OI.shape
    size = _GROUP if inputs % _GROUP == 0 else inputs
    weight = weight_OI.detach().float().view(rows, -1, size)
    scale = (weight.abs().amax(dim=-1, keepdim=True) / _LARGEST_INT4).to(torch.bfloat16)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight / scale.float()).round().clamp(-_LARGEST_INT4, _LARGEST_INT4).to(torch.int8), scale


def packed_int4(values: Tensor) -> Tensor:
    """Two values to a byte, the first in its lower half."""
    low, high = values.reshape(-1, 2).unbind(dim=1)
    return (low & 15 | high << 4).to(torch.int8)


class Weights:
    """Constants of one form, whose memory is made once for all graphs."""

    def __init__(self, form: Form, half: torch.dtype = torch.bfloat16) -> None:
        self.form, self.dtype = form, arithmetic(form, half)
        self.type = _TYPES[self.dtype]
        self._parts: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._digests: dict[int, tuple[Tensor, bytes]] = {}

    def matrix(self, weight_OI: Tensor) -> Node:
        """A matrix to multiply rows with."""
        if self.form == "int4":
            return self._matrix_int4(weight_OI)
        return self.head_matrix(weight_OI)

    def head_matrix(self, weight_OI: Tensor) -> Node:
        """The matrix of a head, which int4 would cost most: it is int8 then."""
        values, *scale = self._prepared(weight_OI)
        if not scale:
            return self.constant(values)
        whole = op.convert(op.constant(memory_of(values), shared_memory=True), self.type)
        return op.multiply(whole, self.constant(scale[0]))

    def _matrix_int4(self, weight_OI: Tensor) -> Node:
        packed, scale = self._kept_parts(weight_OI, self._int4_parts)
        shape = ov.Shape([*scale.shape[:2], weight_OI.shape[1] // scale.shape[1]])
        whole = op.constant(ov.Tensor(memory_of(packed).view(np.uint8), shape, ov.Type.i4), shared_memory=True)
        groups = op.multiply(op.convert(whole, self.type), self.constant(scale))
        return op.reshape(groups, op.constant(list(weight_OI.shape)), special_zero=False)

    def _int4_parts(self, weight_OI: Tensor) -> tuple[Tensor, ...]:
        values, scale = quantized_int4(weight_OI)
        return packed_int4(values), scale.to(self.dtype)

    def vector(self, values: Tensor) -> Node:
        """A bias, in the type of arithmetic."""
        return self.constant(self._kept(values, values.detach().to(self.dtype)))

    def scales(self, values: Tensor) -> Node:
        """The weights of a norm, which is computed in float32."""
        return self.constant(self._kept(values, values.detach().float()))

    def constant(self, tensor: Tensor) -> Node:
        """A constant that shares the memory of a tensor; of a number, one of its own."""
        memory = memory_of(tensor)
        return op.constant(ov.Tensor(memory, ov.Shape(list(tensor.shape)), _TYPES[tensor.dtype]), shared_memory=True)

    def number(self, value: float) -> Node:
        """A number in the type of arithmetic."""
        return op.convert(op.constant(np.float32(value)), self.type)

    def digest(self, *tensors: Tensor) -> str:
        """What tells these weights from others."""
        whole = hashlib.sha256()
        for tensor in tensors:
            if id(tensor) not in self._digests:
                own = hashlib.sha256(str((tuple(tensor.shape), tensor.dtype)).encode())
                own.update(memory_of(tensor).tobytes() if tensor.dim() == 0 else memory_of(tensor).data)
                self._digests[id(tensor)] = tensor, own.digest()
            whole.update(self._digests[id(tensor)][1])
        return whole.hexdigest()

    def _prepared(self, weight_OI: Tensor) -> tuple[Tensor, ...]:
        return self._kept_parts(weight_OI, self._parts_of)

    def _parts_of(self, weight_OI: Tensor) -> tuple[Tensor, ...]:
        if self.form not in ("int8", "int4"):
            return (weight_OI.detach().to(self.dtype),)
        values, scale = quantized(weight_OI)
        return values, scale.to(self.dtype)

    def _kept_parts(self, source: Tensor, make: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if id(source) not in self._parts:
            self._parts[id(source)] = source, make(source)
        return self._parts[id(source)][1]

    def _kept(self, source: Tensor, made: Tensor) -> Tensor:
        """The same converted tensor for all graphs; the source is kept, so that its id stays its own."""
        return self._parts.setdefault(id(source), (source, (made,)))[1][0]
