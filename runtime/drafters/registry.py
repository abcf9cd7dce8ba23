"""Every kind of drafter folder and what loads it, by the name that its `config.json` has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import torch

from decoding.errors import ConfigError, ModelFormatError, shown
from decoding.files import parse_json
from decoding.schedule import Method
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


class Kind(NamedTuple):
    """What loads a kind of folder, and the method that it is for; None for a draft model, which serves several."""

    load: Loader
    method: Method | None = None


def load_drafter(folder: Path, context: DrafterContext) -> WindowDrafter:
    """The drafter of a folder, for the target of the context.

    Raises:
        ConfigError: the folder holds streams of a target, which need no lane of their own.
        ModelError: the target is not the one the drafter was trained for, or has another tokenizer.
        ModelFormatError: a file is missing or damaged, or the folder is of no known kind.
    """
    kind = kind_of(folder)
    if kind not in KINDS:
        path, known = folder / CONFIG_FILE, ", ".join(KINDS)
        raise ModelFormatError(
            f"{path}: speculators_model_type is {shown(kind)}, not a kind of drafter; known kinds: {known}"
        )
    return KINDS[kind].load(folder, context)


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

    def load(folder: Path, context: DrafterContext) -> WindowDrafter:
        target = context.load_target()
        target.config.require_rotary(str(folder))
        return _function(loader)(folder, target, dtype=context.dtype)

    return load


def _of_its_own(loader: str) -> Loader:
    """What loads a model of its own, which has the target's tokenizer and nothing else of it."""
    return lambda folder, context: _function(loader)(folder, context.target_folder, dtype=context.dtype)


def _refuse_streams(folder: Path, _: DrafterContext) -> WindowDrafter:
    raise ConfigError(
        f"{folder / CONFIG_FILE}: these are streams of a target: they draft in its own lane, by the method "
        "speculative_streaming"
    )


def _without_weights(loader: str) -> Loader:
    """What loads a drafter that needs its folder alone."""
    return lambda folder, _: _function(loader)(folder)


KINDS: Final[dict[str, Kind]] = {
    "mirrorsd_draft": Kind(_of_its_target("runtime.drafters.language_model.folder:load_language_model")),
    "mirrorsd_medusa": Kind(_of_its_target("runtime.drafters.medusa.folder:load_medusa"), "medusa"),
    "mirrorsd_hydra": Kind(_of_its_target("runtime.drafters.hydra.folder:load_hydra"), "hydra"),
    "mirrorsd_eagle1": Kind(_of_its_target("runtime.drafters.eagle.folder:load_eagle1"), "eagle2"),
    "mirrorsd_eagle3": Kind(_of_its_target("runtime.drafters.eagle.folder:load_eagle3"), "eagle3"),
    "mirrorsd_prompt_lookup": Kind(
        _without_weights("runtime.drafters.prompt_lookup.folder:load_prompt_lookup"), "prompt_lookup"
    ),
    STREAM_KIND: Kind(_refuse_streams, "speculative_streaming"),
    CAUSAL_LM_KIND: Kind(_of_its_own("runtime.drafters.causal_lm.folder:load_causal_lm")),
    "published_eagle3": Kind(_of_its_target("runtime.drafters.eagle.published:load_published_eagle3"), "eagle3"),
    "published_medusa": Kind(_of_its_target("runtime.drafters.medusa.published:load_published_medusa"), "medusa"),
}
"""By `speculators_model_type` of a folder's config; published heads and models have none, but other fields."""


def kind_of(folder: Path) -> str:
    """The kind that a folder's config names.

    Raises:
        ModelFormatError: the config cannot be read.
    """
    path = folder / CONFIG_FILE
    try:
        config = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        return str(None)
    if "speculators_model_type" not in config:
        if "medusa_num_heads" in config:
            return "published_medusa"
        if "eagle3" in shown(config.get("architectures")).lower():
            return "published_eagle3"
        if "architectures" in config:
            return CAUSAL_LM_KIND
    kind = config.get("speculators_model_type")
    return kind if isinstance(kind, str) else shown(kind)
