"""Which models work together: a target, its drafter and its exits, by what a user calls them. No weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from decoding.errors import ModelFormatError
from decoding.schedule import Method

Dtype = Literal["bfloat16", "float32"]
Progress = Callable[[str, float], None]

_DRAFT: Final = "mirrorsd_draft"
_EXITS: Final = "mirrorsd_exits"
_HEADS: Final[Mapping[str, Method]] = {
    "mirrorsd_medusa": "medusa",
    "mirrorsd_hydra": "hydra",
    "mirrorsd_eagle1": "eagle2",
    "mirrorsd_eagle3": "eagle3",
    "mirrorsd_streams": "speculative_streaming",
    "published_medusa": "medusa",
    "published_eagle3": "eagle3",
}
"""Kinds of folder that hold heads of a target, and the method that each is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPair:
    """A target and what drafts for it.

    Attributes:
        target: what the user calls it.
        target_folder: its Hugging Face folder.
        drafter, drafter_folder: likewise; None if there is none.
        exits, exits_folder: trained exit adapters; without them exits are read by the plain logit lens.
        dtype: of weights and arithmetic.
        heads: heads and streams of the target, by name.
    """

    target: str
    target_folder: Path
    drafter: str | None
    drafter_folder: Path | None
    exits: str | None
    exits_folder: Path | None
    dtype: Dtype
    heads: Mapping[str, Path] = field(default_factory=dict)

    def head_for(self, method: Method) -> str | None:
        """The first head for a method; None if there is none.

        Raises:
            ModelFormatError: a head's configuration is missing or damaged.
        """
        return next((name for name, own in self.head_methods.items() if own == method), None)

    @property
    def head_methods(self) -> Mapping[str, Method]:
        """The method that each head is for.

        Raises:
            ModelFormatError: a head's configuration is missing or damaged.
        """
        return {name: _HEADS[_kind(folder)] for name, folder in self.heads.items()}


def find_pair(
    target: str,
    *,
    drafter: str | None = None,
    exits: str | None = None,
    heads: Sequence[str] | None = None,
    dtype: Dtype = "bfloat16",
    progress: Progress = lambda _step, _share: None,
) -> ModelPair:
    """Find the models; where drafter, exits or heads are not named, those that ship for the target are taken.

    Args:
        target: an embedded model's name, a Hugging Face folder, or a hub id.
        drafter: name or folder; None for the first that ships, if any does.
        exits: likewise.
        heads: names or folders of heads and streams; None for all that ship.
        dtype: of weights and arithmetic.
        progress: called with what is under way and the share that is done.

    Raises:
        ModelError: a model is not to be had, or is of an unsupported family.
    """
    from runtime.drafters.shipped import find_drafter
    from runtime.models.model_folder import resolve_model

    target_folder = resolve_model(target, progress=progress)
    shipped = list(_shipped_for(target_folder.name))
    drafter = drafter or next((name for name, kind in shipped if kind == _DRAFT), None)
    exits = exits or next((name for name, kind in shipped if kind == _EXITS), None)
    heads = [name for name, kind in shipped if kind in _HEADS] if heads is None else heads
    drafter_folder = find_drafter(drafter) if drafter is not None else None
    exits_folder = find_drafter(exits) if exits is not None else None
    _require_kind(drafter_folder, _DRAFT)
    _require_kind(exits_folder, _EXITS)
    head_folders = [find_drafter(name) for name in heads]
    for folder in head_folders:
        _require_head(folder)
    return ModelPair(
        target=target,
        target_folder=target_folder,
        drafter=None if drafter is None else lasting_name(drafter),
        drafter_folder=drafter_folder,
        exits=None if exits is None else lasting_name(exits),
        exits_folder=exits_folder,
        dtype=dtype,
        heads={lasting_name(name): folder for name, folder in zip(heads, head_folders, strict=True)},
    )


def lasting_name(name: str) -> str:
    """A shipped name as it is, a path made absolute: schedules and profiles are read from anywhere."""
    from runtime.drafters.shipped import shipped_names

    return name if name in shipped_names() else str(Path(name).expanduser().resolve())


def _shipped_for(target: str) -> Iterator[tuple[str, str]]:
    """Name and kind of all shipped folders that were trained for that target."""
    from runtime.drafters.shipped import find_drafter, shipped_names

    for name in shipped_names():
        folder = find_drafter(name)
        if _verifier(_config(folder)) == target:
            yield name, _kind(folder)


def _require_head(folder: Path) -> None:
    found = _kind(folder)
    if found not in _HEADS:
        msg = f"{folder}: is no head: config.json has speculators_model_type {found!r}, expected {', '.join(_HEADS)}"
        raise ModelFormatError(msg)


def _require_kind(folder: Path | None, kind: str) -> None:
    if folder is None:
        return
    found = _kind(folder)
    if found != kind:
        what = {_DRAFT: "a drafter", _EXITS: "exit adapters"}[kind]
        msg = f"{folder}: is not {what}: config.json has speculators_model_type {found!r}, expected {kind!r}"
        raise ModelFormatError(msg)


def _kind(folder: Path) -> str:
    from runtime.drafters.registry import kind_of

    _config(folder)
    return kind_of(folder)


def _config(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{path}: not a readable configuration ({error})"
        raise ModelFormatError(msg) from error
    return config if isinstance(config, dict) else {}


def _verifier(config: dict[str, object]) -> object:
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    return verifier.get("name_or_path") if isinstance(verifier, dict) else None
