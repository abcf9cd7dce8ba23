"""Weights as constants of a graph: as they are, or as int8 with a scale for every row.

Graphs share the memory of what they are made of, so a `Weights` has to live as long as a graph is being compiled.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from runtime.backends.openvino.library import Node, op, ov

Form = Literal["float32", "bfloat16", "int8"]
"""Of weights; int8 is computed with in bfloat16."""

_LARGEST: Final = 127
_TYPES: Final = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16}


def arithmetic(form: Form) -> torch.dtype:
    """What is computed with, and what keys and values are kept in."""
    return torch.float32 if form == "float32" else torch.bfloat16


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


class Weights:
    """Constants of one form, whose memory is made once for all graphs."""

    def __init__(self, form: Form) -> None:
        self.form, self.dtype = form, arithmetic(form)
        self.type = _TYPES[self.dtype]
        self._parts: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._digests: dict[int, tuple[Tensor, bytes]] = {}

    def matrix(self, weight_OI: Tensor) -> Node:
        """A matrix to multiply rows with."""
        values, *scale = self._prepared(weight_OI)
        if not scale:
            return self.constant(values)
        whole = op.convert(op.constant(memory_of(values), shared_memory=True), self.type)
        return op.multiply(whole, self.constant(scale[0]))

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
        if id(weight_OI) not in self._parts:
            made = quantized(weight_OI) if self.form == "int8" else (weight_OI.detach().to(self.dtype),)
            self._parts[id(weight_OI)] = weight_OI, made
        return self._parts[id(weight_OI)][1]

    def _kept(self, source: Tensor, made: Tensor) -> Tensor:
        """The same converted tensor for all graphs; the source is kept, so that its id stays its own."""
        return self._parts.setdefault(id(source), (source, (made,)))[1][0]
