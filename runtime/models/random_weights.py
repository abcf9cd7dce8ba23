"""Weights of models of which only the shape is there (`runtime.storage.shape_folder`), made in the lane that loads one.

A matrix is a window onto one block of random numbers: its rows begin a few numbers after each other, at a place that
the seed and its name tell. So no row is like another, and all models together take no more than the block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BLOCK: Final = 1 << 22
"""Numbers: windows of all matrices that models have begin at different places of it."""


def random_arrays(shapes: Mapping[str, Sequence[int]], seed: int, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return an array for every name: windows onto one block of small random numbers, ones for norms, zero biases."""
    block = np.random.default_rng(seed).standard_normal(_BLOCK, np.float32)
    blocks: dict[float, NDArray[Any]] = {}

    def made(name: str, shape: Sequence[int]) -> NDArray[Any]:
        if len(shape) != 2:
            return np.full(shape, 0 if name.endswith("bias") else 1, dtype)
        scale = float(np.float32(shape[1] ** -0.5))
        if scale not in blocks:
            blocks[scale] = (block * scale).astype(dtype)
        start, step = _window(shape, seed, name)
        own, size = blocks[scale][start:], dtype.itemsize
        return np.lib.stride_tricks.as_strided(own, tuple(shape), (step * size, size))

    return {name: made(name, shape) for name, shape in shapes.items()}


def _window(shape: Sequence[int], seed: int, name: str) -> tuple[int, int]:
    """Return where a matrix [O, I] begins in the block, and the distance of its rows: as large as fits."""
    rows, size = shape
    step = min(size, (_BLOCK - size) // rows)
    if step < 1:
        raise ValueError(f"{name}: no room for {rows} rows of {size} in a block of {_BLOCK}")
    last = _BLOCK - (rows - 1) * step - size
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (last + 1), step
