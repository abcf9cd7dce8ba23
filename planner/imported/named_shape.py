"""The shape of the model whose parts a table times: given, or one that ships under the name of a folder on the way."""

from __future__ import annotations

from pathlib import Path

from decoding.errors import ConfigError
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models


def named_shape(path: Path, target: str | None) -> ModelShape:
    """Return the shape.

    Raises:
        ConfigError: none is given, and no part of the path is called as one that ships.
        ModelError: the given one cannot be had.
    """
    if target is not None:
        return model_shape(target)
    shipped = shipped_models()
    for part in reversed(path.resolve().parts):
        name = part.lower().removesuffix("-hf").removesuffix("-instruct").removeprefix("meta-")
        if name in shipped:
            return model_shape(name)
    raise ConfigError(f"{path}: tables of layers do not say how many layers a model has; say it: --target llama-3.1-8b")
