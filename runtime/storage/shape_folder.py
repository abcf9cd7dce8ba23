"""Models of which only the shape is there: a folder with a `config.json`, and random weights made by who loads it.

What such a model writes means nothing; how long it takes does. A model is one of these where its config.json says so
(`MARK`, which holds the seed): a folder that merely lost its weights is an error. `shape:PATH` marks a copy.
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
    """The folder of a model with random weights, made of the config that `shape:PATH` names if it is not there yet.

    Args:
        name: `shape:` and the path of a Hugging Face config.json, or of a folder that holds one.

    Raises:
        ModelError: there is no such file, it is not of a supported model, or the copy cannot be written.
    """
    path = named_path(name.removeprefix(PREFIX))
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
