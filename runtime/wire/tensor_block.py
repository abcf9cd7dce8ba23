"""Tensors as the arrays that cross between processes, bit by bit: numpy knows no bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.wire.channel import Block


def to_block(tensor: Tensor) -> Block:
    """The elements of a tensor."""
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return Block(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def to_tensor(block: Block) -> Tensor:
    """A tensor of its own memory."""
    dtype = getattr(torch, block.dtype)
    if not block.data:
        return torch.empty(block.shape, dtype=dtype)
    return torch.frombuffer(bytearray(block.data), dtype=dtype).view(block.shape)
