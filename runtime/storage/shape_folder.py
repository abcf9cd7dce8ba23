"""Models of which only the shape is there: a folder with a `config.json`, and random weights made by who loads it.

What such a model writes means nothing; how long it takes does. Its config.json says so (`MARK`, with the seed): a
folder that merely lost its weights is an error. `shape:PATH` marks a copy. A matrix is a window onto one block of
random numbers: its rows begin a few numbers after each other, at a place that the seed and its name tell. So no row is
like another, and all models together take no more than the block.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ModelError
from decoding.files import named_path, replace_file
from runtime.models.config import ModelConfig
from runtime.models.embedded import make_cache, models_folder
from runtime.models.hf_config import MARK, read_object

PREFIX: Final = "shape:"
_SEED: Final = 0


def is_shape_name(name: str) -> bool:
    """Return whether a model's name asks for its shape alone."""
    return name.startswith(PREFIX)


def shape_folder(name: str) -> Path:
    """Return the folder of a model with random weights, of the config.json (or its folder) that `shape:PATH` names.

    Raises `ModelError` if there is no such file, it is not supported, or the copy cannot be written.
    """
    path = named_path(name.removeprefix(PREFIX))
    path = path / "config.json" if path.is_dir() else path
    raw = read_object(path, holds=f"{PREFIX} takes the path of a Hugging Face config.json, or of its folder")
    return save_shape(raw, path.absolute().parent.name, source=str(path))


def save_shape(raw: dict[str, Any], name: str, *, source: str) -> Path:
    """Return a folder in the cache, called `name` and a digest, for a model of this config with random weights.

    Raises `ModelError`, with `source`, for a config that is not supported, or a folder that cannot be written.
    """
    raw = raw | {MARK: _SEED}
    ModelConfig.from_hf(raw, source=source)
    content = json.dumps(raw, indent=2, sort_keys=True).encode() + b"\n"
    folder = models_folder() / f"shape-{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    path = folder / "config.json"
    if path.is_file():
        return folder
    try:
        make_cache()
        replace_file(path, content)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be written ({error})") from error
    return folder


def has_random_weights(folder: Path) -> bool:
    """Return whether a model's folder asks for random weights; False for one without a config."""
    path = folder / "config.json"
    return path.is_file() and MARK in read_object(path, holds="")


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
