"""Every kind of drafter folder and what loads it, by the name that its `config.json` has for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

from decoding.errors import ConfigError, ModelFormatError
from runtime.drafters.streams.folder import STREAM_KIND
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder
from runtime.storage.weight_folder import CONFIG_FILE

Loader = Callable[[Path, Decoder, torch.dtype], WindowDrafter]


def load_drafter(folder: Path, target: Decoder, *, dtype: torch.dtype) -> WindowDrafter:
    """The drafter of a folder, for this target (its layers need not be there) and in `dtype`.

    Raises:
        ConfigError: the folder holds streams of a target, which need no lane of their own.
        ModelError: the target is not the one the drafter was trained for.
        ModelFormatError: a file is missing or damaged, or the folder is of no known kind.
    """
    path = folder / CONFIG_FILE
    kind = _kind(path)
    if kind == STREAM_KIND:
        msg = f"{path}: these are streams of a target: they draft in its own lane, by the method speculative_streaming"
        raise ConfigError(msg)
    if kind not in LOADERS:
        msg = f"{path}: speculators_model_type is {kind!r}, not a kind of drafter; known kinds: {', '.join(LOADERS)}"
        raise ModelFormatError(msg)
    return LOADERS[kind](folder, target, dtype)


def require_streams(folder: Path) -> None:
    """Refuse a folder that does not hold streams of a target.

    Raises:
        ConfigError: it holds something else.
        ModelFormatError: its config cannot be read.
    """
    path = folder / CONFIG_FILE
    kind = _kind(path)
    if kind != STREAM_KIND:
        msg = f"{path}: method speculative_streaming needs streams of the target ({STREAM_KIND}), found {kind!r}"
        raise ConfigError(msg)


def _draft(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.language_model.drafter import Drafter
    from runtime.drafters.language_model.folder import load_draft

    return Drafter(load_draft(folder, target, dtype=dtype))


def _medusa(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.medusa.folder import load_medusa

    return load_medusa(folder, target, dtype=dtype)


def _hydra(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.hydra.folder import load_hydra

    return load_hydra(folder, target, dtype=dtype)


def _eagle1(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.eagle.folder import load_eagle1

    return load_eagle1(folder, target, dtype=dtype)


def _eagle3(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.eagle.folder import load_eagle3

    return load_eagle3(folder, target, dtype=dtype)


def _published_eagle3(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.eagle.published import load_published_eagle3

    return load_published_eagle3(folder, target, dtype=dtype)


def _published_medusa(folder: Path, target: Decoder, dtype: torch.dtype) -> WindowDrafter:
    from runtime.drafters.medusa.published import load_published_medusa

    return load_published_medusa(folder, target, dtype=dtype)


# imports wait until a kind is asked for: a lane loads what it runs, and nothing else
LOADERS: Final[Mapping[str, Loader]] = {
    "mirrorsd_draft": _draft,
    "mirrorsd_medusa": _medusa,
    "mirrorsd_hydra": _hydra,
    "mirrorsd_eagle1": _eagle1,
    "mirrorsd_eagle3": _eagle3,
    "published_eagle3": _published_eagle3,
    "published_medusa": _published_medusa,
}
"""By kind: `speculators_model_type` of a folder's config; published heads have none and are told by other fields."""


def kind_of(folder: Path) -> str:
    """The kind that a folder's config names.

    Raises:
        ModelFormatError: the config cannot be read.
    """
    return _kind(folder / CONFIG_FILE)


def _kind(path: Path) -> str:
    """The kind that a config names."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        msg = f"{path}: cannot be read as JSON ({error})"
        raise ModelFormatError(msg) from error
    if not isinstance(config, dict):
        return str(None)
    if "speculators_model_type" not in config:
        if "medusa_num_heads" in config:
            return "published_medusa"
        if "eagle3" in str(config.get("architectures")).lower():
            return "published_eagle3"
    return str(config.get("speculators_model_type"))
