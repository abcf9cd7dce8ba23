"""Which models work together: a target, its drafter and its exits, by what a user calls them. No weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from decoding.errors import ModelFormatError

Dtype = Literal["bfloat16", "float32"]
Progress = Callable[[str, float], None]

_DRAFT: Final = "mirrorsd_draft"
_EXITS: Final = "mirrorsd_exits"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPair:
    """A target and what drafts for it.

    Attributes:
        target: what the user calls it.
        target_folder: its Hugging Face folder.
        drafter, drafter_folder: likewise; None if there is none.
        exits, exits_folder: trained exit adapters; without them exits are read by the plain logit lens.
        dtype: of weights and arithmetic.
    """

    target: str
    target_folder: Path
    drafter: str | None
    drafter_folder: Path | None
    exits: str | None
    exits_folder: Path | None
    dtype: Dtype


def find_pair(
    target: str,
    *,
    drafter: str | None = None,
    exits: str | None = None,
    dtype: Dtype = "bfloat16",
    progress: Progress = lambda _step, _share: None,
) -> ModelPair:
    """Find the models; where drafter or exits are not named, those that ship for the target are taken, if any do.

    Raises:
        ModelError: a model is not to be had, or is of an unsupported family.
    """
    from runtime.models.folder import resolve_model
    from runtime.shipped import find_drafter

    target_folder = resolve_model(target, progress=progress)
    drafter = drafter or _shipped_for(target_folder.name, _DRAFT)
    exits = exits or _shipped_for(target_folder.name, _EXITS)
    drafter_folder = find_drafter(drafter) if drafter is not None else None
    exits_folder = find_drafter(exits) if exits is not None else None
    _require_kind(drafter_folder, _DRAFT)
    _require_kind(exits_folder, _EXITS)
    return ModelPair(
        target=target,
        target_folder=target_folder,
        drafter=_lasting_name(drafter),
        drafter_folder=drafter_folder,
        exits=_lasting_name(exits),
        exits_folder=exits_folder,
        dtype=dtype,
    )


def _shipped_for(target: str, kind: str) -> str | None:
    """The first shipped folder of that kind that was trained for that target."""
    from runtime.shipped import find_drafter, shipped_names

    for name in shipped_names():
        config = _config(find_drafter(name))
        if config.get("speculators_model_type") == kind and _verifier(config) == target:
            return name
    return None


def _lasting_name(name: str | None) -> str | None:
    """A shipped name as it is, a path made absolute: schedules and profiles are read from anywhere."""
    from runtime.shipped import shipped_names

    return name if name is None or name in shipped_names() else str(Path(name).expanduser().resolve())


def _require_kind(folder: Path | None, kind: str) -> None:
    if folder is None:
        return
    found = _config(folder).get("speculators_model_type")
    if found != kind:
        what = {_DRAFT: "a drafter", _EXITS: "exit adapters"}[kind]
        msg = f"{folder}: is not {what}: config.json has speculators_model_type {found!r}, expected {kind!r}"
        raise ModelFormatError(msg)


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
