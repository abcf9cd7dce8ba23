"""The kinds of drafter folders with their loaders, and how drafters are found by name, shipped ones included."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from decoding.errors import ConfigError, ModelError, ModelFormatError, shown
from decoding.files import named_path
from decoding.schedule import Method
from runtime.memory.model_bytes import Sizer, tracks_size, trained_size, whole_model_size
from runtime.models.hf_config import CONFIG_FILE, published_kind, read_object
from runtime.models.model_folder import NamedFolder, is_model_name, resolve_model

if TYPE_CHECKING:
    import numpy as np
    import torch

    from runtime.backends.backend import Backend
    from runtime.drafters.window_drafter import WindowDrafter
    from runtime.models.decoder import Decoder
    from runtime.parallel.group import Group
    from runtime.storage.stored_decoder import StoredDecoder


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterContext:
    """What loading a drafter needs: its target, the type of weights, its back end, and the lane's ranks (None: one).

    `load_target` returns the target, perhaps without layers, for kinds that share its weights; in compiled lanes its
    weights are numpy arrays. `new_backend` makes the back end of a draft model's decoder; heads stay where they were
    loaded.
    """

    target_folder: Path
    dtype: torch.dtype | np.dtype[Any]
    load_target: Callable[[], Decoder | StoredDecoder]
    new_backend: Callable[[Any], Backend]
    group: Group | None = None


STREAM_KIND: Final = "mirrorsd_streams"
"""The kind of a folder with streams of a target."""
CAUSAL_LM_KIND: Final = "causal_lm"
"""The kind of a standalone model, whose config does not mention drafting."""


class Kind(NamedTuple):
    """A kind of drafter folder.

    Attributes:
        load: loads it.
        method: the method that it drafts for; None for several.
        needs_torch: whether torch computes it even on compiled lanes.
        size: returns its size in memory before it is loaded.
    """

    load: Callable[[Path, DrafterContext], WindowDrafter]
    method: Method | None = None
    needs_torch: bool = True
    size: Sizer = trained_size


def load_drafter(folder: Path, context: DrafterContext) -> WindowDrafter:
    """Return the drafter of a folder, for the target of the context.

    Raises `ConfigError` for streams, `ModelError` for another target or tokenizer, `ModelFormatError` if damaged.
    """
    return known_kind(folder).load(folder, context)


def known_kind(folder: Path) -> Kind:
    """Return the kind of a folder; raise `ModelFormatError` if its config cannot be read or names an unknown kind."""
    kind = kind_of(folder)
    if kind not in KINDS:
        msg = f"speculators_model_type is {shown(kind)}, not a kind of drafter; known kinds: {', '.join(KINDS)}"
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {msg}")
    return KINDS[kind]


def require_streams(folder: Path) -> None:
    """Raise `ConfigError` for a folder that does not hold streams of a target."""
    if (kind := kind_of(folder)) != STREAM_KIND:
        msg = f"method speculative_streaming needs streams of the target ({STREAM_KIND}), found {kind!r}"
        raise ConfigError(f"{folder / CONFIG_FILE}: {msg}")


def _lazily(loader: str) -> Callable[..., Any]:
    """Return a function that imports `module:function` when called, so that a lane imports only kinds that it runs."""

    def call(*arguments: Any, **options: Any) -> Any:
        module, _, name = loader.partition(":")
        return getattr(import_module(f"runtime.drafters.{module}"), name)(*arguments, **options)

    return call


def _with_target(loader: str) -> Callable[[Path, DrafterContext], Any]:
    def load(folder: Path, context: DrafterContext) -> Any:
        target = context.load_target()
        target.config.require_rotary(str(folder))
        return _lazily(loader)(folder, target, dtype=context.dtype)

    return load


def _standalone(loader: str) -> Callable[[Path, DrafterContext], Any]:
    return lambda folder, context: _lazily(loader)(folder, context.target_folder, dtype=context.dtype)


def _draft_model(load_model: Callable[[Path, DrafterContext], Any]) -> Callable[[Path, DrafterContext], WindowDrafter]:
    def load(folder: Path, context: DrafterContext) -> WindowDrafter:
        from runtime.drafters.language_model.drafter import Drafter

        model = load_model(folder, context)
        model.run_on(context.new_backend(model.decoder))
        return Drafter(model)

    return load


def _refuse_streams(folder: Path, _: DrafterContext) -> WindowDrafter:
    msg = "these are streams of a target: they draft in its own lane, by the method speculative_streaming"
    raise ConfigError(f"{folder / CONFIG_FILE}: {msg}")


_load_tracks = _lazily("parallel_track:load_parallel_track")
_load_prompt_lookup = _lazily("prompt_lookup:load_prompt_lookup")

KINDS: Final[dict[str, Kind]] = {
    "mirrorsd_draft": Kind(_draft_model(_with_target("language_model.folder:load_draft_of")), needs_torch=False),
    "mirrorsd_medusa": Kind(_with_target("medusa:load_medusa"), "medusa"),
    "mirrorsd_hydra": Kind(_with_target("hydra:load_hydra"), "hydra"),
    "mirrorsd_eagle1": Kind(_with_target("eagle.folder:load_eagle1"), "eagle2"),
    "mirrorsd_eagle3": Kind(_with_target("eagle.folder:load_eagle3"), "eagle3"),
    "mirrorsd_prompt_lookup": Kind(lambda folder, _: _load_prompt_lookup(folder), "prompt_lookup", needs_torch=False),
    STREAM_KIND: Kind(_refuse_streams, "speculative_streaming"),
    "mirrorsd_parallel_track": Kind(
        lambda folder, context: _load_tracks(folder, context.target_folder, dtype=context.dtype, group=context.group),
        size=tracks_size,
    ),
    CAUSAL_LM_KIND: Kind(
        _draft_model(_standalone("language_model.folder:load_causal_lm")), needs_torch=False, size=whole_model_size
    ),
    "published_eagle3": Kind(_with_target("eagle.folder:load_published_eagle3"), "eagle3"),
    "published_medusa": Kind(_with_target("medusa:load_published_medusa"), "medusa"),
}
"""Kinds by name: the `speculators_model_type` of a folder's config, or what `kind_of` derives from other fields."""


def kind_of(folder: Path) -> str:
    """Return the name of a folder's kind; raise `ModelError` if its config cannot be read."""
    config = read_object(folder / CONFIG_FILE, holds="a drafter's folder holds one")
    if "speculators_model_type" not in config:
        if (published := published_kind(config)) is not None:
            return published
        if "architectures" in config:
            return CAUSAL_LM_KIND
        raise ModelFormatError(f"{folder}: {CONFIG_FILE} has neither architectures nor speculators_model_type")
    kind = config["speculators_model_type"]
    return kind if isinstance(kind, str) else shown(kind)


SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"
TRAINED = "drafter"
"""The subfolder of a training run's `--out` with the weights."""


def shipped_names() -> tuple[str, ...]:
    """Return the names of all shipped drafters and exits, sorted."""
    return tuple(sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{CONFIG_FILE}")))


def shipped_for(target: str) -> tuple[NamedFolder, ...]:
    """Return the shipped drafters and exits for a target, given by its folder's name."""
    fitting = []
    for name in shipped_names():
        config = json.loads((SHIPPED_FOLDER / name / CONFIG_FILE).read_bytes())
        trained = config.get("speculators_config")  # an untrained drafter (prompt lookup) fits any target
        if trained is None or trained["verifier"]["name_or_path"] == target:
            fitting.append(NamedFolder(name, SHIPPED_FOLDER / name))
    return tuple(fitting)


def find_drafter(name_or_path: str) -> Path:
    """Return the folder of a drafter, head or exit adapters, given by a shipped name, a folder, or a model's name.

    For the folder of a training run it is the subfolder with the weights. Raises `ModelError`, with the shipped
    names, if there is none.
    """
    if name_or_path in shipped_names():
        return SHIPPED_FOLDER / name_or_path
    folder = named_path(name_or_path)
    for place in (folder, folder / TRAINED):
        if (place / CONFIG_FILE).is_file():
            return place
    if is_model_name(name_or_path):
        return resolve_model(name_or_path)
    shipped = ", ".join(shipped_names()) or "none"
    found = f"the folder has no {CONFIG_FILE}" if folder.is_dir() else "there is no such folder"
    raise ModelError(f"{name_or_path!r} is not a shipped drafter ({shipped}), and {found}")


def named_drafter(name_or_path: str) -> NamedFolder:
    """Return a drafter's folder, and a name for files: a shipped name, a model's name, or an absolute path."""
    folder = find_drafter(name_or_path)
    is_name = name_or_path in shipped_names() or is_model_name(name_or_path)
    return NamedFolder(name_or_path if is_name else str(folder.resolve()), folder)
