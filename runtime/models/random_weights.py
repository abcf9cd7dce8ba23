"""Weights of models of which only the shape is there (`runtime.storage.shape_folder`), made in the lane that loads one.

A matrix is a window onto one block of random numbers: its rows begin a few numbers after each other, at a place that
the seed and the parameter's name tell. So no row is like another, and all models together take no more than the block,
until a matrix is given memory of its own: which makes it cost what copying memory costs.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor, nn

_BLOCK: Final = 1 << 22
"""Numbers: windows of all matrices that models have begin at different places of it."""


@torch.no_grad()
def fill_at_random(
    module: nn.Module, seed: int, dtype: torch.dtype, device: str = "cpu", *, is_shared: bool = False
) -> None:
    """Give every parameter on the meta device memory on `device`: small random numbers, and ones for norms.

    Matrices keep the scale of what passes through them; biases are zero. The same seed gives the same numbers.

    Args:
        module: whose parameters.
        seed: of the numbers.
        dtype: of the parameters.
        device: where they are to be.
        is_shared: leave matrices windows onto one block: for who brings them into another form before computing, since
            memory that is shared is faster than a model's is.
    """
    block = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(seed))
    blocks: dict[float, Tensor] = {}
    for name, parameter in list(module.named_parameters()):
        if not parameter.is_meta:
            continue
        if parameter.dim() == 2:
            scale = parameter.shape[1] ** -0.5
            scaled = blocks.setdefault(scale, (block * scale).to(device, dtype))
            window = _window(scaled, parameter.shape, seed, name)
            weight = window if is_shared else window.clone(memory_format=torch.contiguous_format)
        else:
            weight = torch.full(parameter.shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype, device=device)
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, nn.Parameter(weight, requires_grad=False))


def _window(block: Tensor, shape: torch.Size, seed: int, name: str) -> Tensor:
    """A matrix [O, I] in the block, its rows as far from each other as there is room for."""
    rows, size = shape
    step = min(size, (len(block) - size) // rows)
    if step < 1:
        raise ValueError(f"{name}: no room for {rows} rows of {size} in a block of {len(block)}")
    last = len(block) - (rows - 1) * step - size
    return block.as_strided((rows, size), (step, 1), _number(seed, name) % (last + 1))


def _number(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")
