"""Arrays on their way between lanes, from and to either library (`runtime.arrays`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import BFLOAT16, Array, as_array, as_tensor, is_tensor
from runtime.wire.channel import Block

if TYPE_CHECKING:
    from torch import Tensor


def to_block(array: Array) -> Block:
    """The elements of an array, bit by bit."""
    own = as_array(array) if is_tensor(array) else array
    return Block(own.dtype.name, own.shape, own.tobytes())


def to_array(block: Block) -> NDArray[Any]:
    """An array of its own memory."""
    dtype = BFLOAT16 if block.dtype == BFLOAT16.name else np.dtype(block.dtype)
    return np.frombuffer(bytearray(block.data), dtype).reshape(block.shape)


def to_tensor(block: Block) -> Tensor:
    """A tensor of its own memory."""
    return as_tensor(to_array(block))
