"""Every kind of drafter folder and what loads it, by the name that its `config.json` has for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

import torch

from decoding.errors import ConfigError, ModelFormatError
from runtime.drafters.streams.folder import STREAM_KIND
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder
from runtime.storage.weight_folder import CONFIG_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterContext:
    """What a drafter may use of its target.

    Attributes:
        target_folder: Hugging Face folder of the target.
        dtype: of all weights.
        load_target: returns the target, whose layers need not be there; called by kinds alone that share its weights.
    """

    target_folder: Path
    dtype: torch.dtype
    load_target: Callable[[], Decoder]


CAUSAL_LM_KIND: Final = "causal_lm"
"""A whole model, which says nothing of drafting itself."""

Loader = Callable[[Path, DrafterContext], WindowDrafter]


def load_drafter(folder: Path, context: DrafterContext) -> WindowDrafter:
    """The drafter of a folder, for the target of the context.

    Raises:
        ConfigError: the folder holds streams of a target, which need no lane of their own.
        ModelError: the target is not the one the drafter was trained for, or has another tokenizer.
        ModelFormatError: a file is missing or damaged, or the folder is of no known kind.
    """
    path, kind = folder / CONFIG_FILE, kind_of(folder)
    if kind == STREAM_KIND:
        msg = f"{path}: these are streams of a target: they draft in its own lane, by the method speculative_streaming"
        raise ConfigError(msg)
    if kind not in LOADERS:
        msg = f"{path}: speculators_model_type is {kind!r}, not a kind of drafter; known kinds: {', '.join(LOADERS)}"
        raise ModelFormatError(msg)
    return LOADERS[kind](folder, context)


def require_streams(folder: Path) -> None:
    """Refuse a folder that does not hold streams of a target.

    Raises:
        ConfigError: it holds something else.
        ModelFormatError: its config cannot be read.
    """
    path, kind = folder / CONFIG_FILE, kind_of(folder)
    if kind != STREAM_KIND:
        msg = f"{path}: method speculative_streaming needs streams of the target ({STREAM_KIND}), found {kind!r}"
        raise ConfigError(msg)


def _function(loader: str) -> Callable[..., WindowDrafter]:
    """`module:function`, imported when a kind is asked for: a lane loads what it runs, and nothing else."""
    module, _, name = loader.partition(":")
    function: Callable[..., WindowDrafter] = getattr(import_module(module), name)
    return function


def _of_its_target(loader: str) -> Loader:
    """What loads a drafter that shares weights of its target."""
    return lambda folder, context: _function(loader)(folder, context.load_target(), dtype=context.dtype)


def _of_its_own(loader: str) -> Loader:
    """What loads a model of its own, which has the target's tokenizer and nothing else of it."""
    return lambda folder, context: _function(loader)(folder, context.target_folder, dtype=context.dtype)


def _without_weights(loader: str) -> Loader:
    """What loads a drafter that needs its folder alone."""
    return lambda folder, _: _function(loader)(folder)


LOADERS: Final[Mapping[str, Loader]] = {
    "mirrorsd_draft": _of_its_target("runtime.drafters.language_model.folder:load_language_model"),
    "mirrorsd_medusa": _of_its_target("runtime.drafters.medusa.folder:load_medusa"),
    "mirrorsd_hydra": _of_its_target("runtime.drafters.hydra.folder:load_hydra"),
    "mirrorsd_eagle1": _of_its_target("runtime.drafters.eagle.folder:load_eagle1"),
    "mirrorsd_eagle3": _of_its_target("runtime.drafters.eagle.folder:load_eagle3"),
    "mirrorsd_prompt_lookup": _without_weights("runtime.drafters.prompt_lookup.folder:load_prompt_lookup"),
    CAUSAL_LM_KIND: _of_its_own("runtime.drafters.causal_lm.folder:load_causal_lm"),
    "published_eagle3": _of_its_target("runtime.drafters.eagle.published:load_published_eagle3"),
    "published_medusa": _of_its_target("runtime.drafters.medusa.published:load_published_medusa"),
}
"""By kind: `speculators_model_type` of a folder's config; published heads and models have none, but other fields."""


def kind_of(folder: Path) -> str:
    """The kind that a folder's config names.

    Raises:
        ModelFormatError: the config cannot be read.
    """
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        return str(None)
    if "speculators_model_type" not in config:
        if "medusa_num_heads" in config:
            return "published_medusa"
        if "eagle3" in str(config.get("architectures")).lower():
            return "published_eagle3"
        if "architectures" in config:
            return CAUSAL_LM_KIND
    return str(config.get("speculators_model_type"))
