"""Weights of models of which only the shape is there (`runtime.storage.shape_folder`), made in the lane that loads one.

They are read in a circle from one block of random numbers, from a place that the seed and the parameter's name tell.
So they cost what copying memory costs, every parameter has memory of its own, and no row of a matrix is like another.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor, nn

_BLOCK: Final = 1_048_573
"""Numbers in a circle: a prime, so that rows of all sizes start at different places of it."""


@torch.no_grad()
def fill_at_random(module: nn.Module, seed: int, dtype: torch.dtype, device: str = "cpu") -> None:
    """Give every parameter on the meta device memory on `device`: small random numbers, and ones for norms.

    Matrices keep the scale of what passes through them; biases are zero. The same seed gives the same numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(_BLOCK, generator=generator)
    blocks: dict[float, Tensor] = {}
    for name, parameter in list(module.named_parameters()):
        if not parameter.is_meta:
            continue
        weight = torch.empty(parameter.shape, dtype=dtype, device=device)
        if parameter.dim() == 2:
            scale = parameter.shape[1] ** -0.5
            scaled = blocks.setdefault(scale, (block * scale).to(device, dtype))
            _copy_in_a_circle(scaled, weight.view(-1), _place(seed, name))
        else:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, nn.Parameter(weight, requires_grad=False))


def _copy_in_a_circle(block: Tensor, out: Tensor, start: int) -> None:
    """Fill `out` from the block, beginning at a place of it."""
    done = 0
    while done < len(out):
        piece = block[start : start + len(out) - done]
        out[done : done + len(piece)] = piece
        done, start = done + len(piece), 0


def _place(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") % _BLOCK
