"""Models of which only the shape is there: a `config.json`, and random weights made in the lane that loads it.

What such a model writes means nothing; how long it takes does. A model is one of these where its config.json says so
(`MARK`, which holds the seed): a folder that merely lost its weights is an error. `shape:PATH` marks a copy.

Weights are read in a circle from one block of random numbers, from a place that the seed and the parameter's name tell.
So they cost what copying memory costs, every parameter has memory of its own, and no row of a matrix is like another.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from decoding.errors import ModelError
from decoding.files import replace_file
from runtime.models.config import ModelConfig
from runtime.models.embedded import models_folder
from runtime.models.hf_config import MARK, read_object

PREFIX: Final = "shape:"
_BLOCK: Final = 1_048_573
"""Numbers in a circle: a prime, so that rows of all sizes start at different places of it."""
_SEED: Final = 0


def is_shape_name(name: str) -> bool:
    """Whether a model's name asks for its shape alone."""
    return name.startswith(PREFIX)


def shape_folder(name: str) -> Path:
    """The folder of a model with random weights, made of the config that `shape:PATH` names if it is not there yet.

    Args:
        name: `shape:` and the path of a Hugging Face config.json, or of a folder that holds one.

    Raises:
        ModelError: there is no such file, it is not of a supported model, or the copy cannot be written.
    """
    path = Path(name.removeprefix(PREFIX)).expanduser()
    path = path / "config.json" if path.is_dir() else path
    raw = read_object(path, holds=f"{PREFIX} takes the path of a Hugging Face config.json, or of its folder")
    return save_shape(raw, path.absolute().parent.name, source=str(path))


def save_shape(raw: dict[str, Any], name: str, *, source: str) -> Path:
    """A folder in the cache for a model of this config with random weights.

    Args:
        raw: content of a config.json.
        name: what its folder is called; the content is added to it as a number.
        source: what errors call the config.

    Raises:
        ModelError: it is not of a supported model, or the folder cannot be written.
    """
    raw = raw | {MARK: _SEED}
    ModelConfig.from_hf(raw, source=source)
    content = json.dumps(raw, indent=2, sort_keys=True).encode() + b"\n"
    folder = models_folder() / f"shape-{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "config.json", content)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be written ({error})") from error
    return folder


def has_random_weights(folder: Path) -> bool:
    """Whether a model's folder asks for random weights; False for one that holds no config."""
    path = folder / "config.json"
    return path.is_file() and MARK in read_object(path, holds="")


@torch.no_grad()
def fill_at_random(module: nn.Module, seed: int, dtype: torch.dtype, device: str = "cpu") -> None:
    """Give every parameter on the meta device memory on `device`: small random numbers, and ones for norms.

    Matrices keep the scale of what passes through them; biases are small. The same seed gives the same numbers.
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
