"""Models of which only the shape is there: a folder with a `config.json`, and random weights made by who loads it.

What such a model writes means nothing; how long it takes does. Its config.json says so (`MARK`, with the seed): a
folder that merely lost its weights is an error. `shape:PATH` marks a copy.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

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
