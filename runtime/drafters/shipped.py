"""The drafters, heads and exit adapters that ship with the package, found by name. No weights are read here."""

from __future__ import annotations

import json
from pathlib import Path

from decoding.errors import ModelError
from decoding.files import named_path
from runtime.models.model_folder import NamedFolder, is_model_name, resolve_model

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"
_MARK = "config.json"
_TRAINED = "drafter"
"""Where a training run puts the weights, in the folder of its `--out`."""


def shipped_names() -> tuple[str, ...]:
    """Names of everything that ships, sorted."""
    return tuple(sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{_MARK}")))


def shipped_for(target: str) -> tuple[NamedFolder, ...]:
    """Everything that ships for a target, by the name of the target's folder."""
    named = (NamedFolder(name, SHIPPED_FOLDER / name) for name in shipped_names())
    return tuple(one for one in named if _fits(one.folder, target))


def find_drafter(name_or_path: str) -> Path:
    """Return the folder of a drafter, head or exit adapters: a shipped name, a folder, or a model's name.

    Of a training run's folder it is the one inside it that holds the weights. Raises `ModelError`, with the shipped
    names.
    """
    if name_or_path in shipped_names():
        return SHIPPED_FOLDER / name_or_path
    folder = named_path(name_or_path)
    for place in (folder, folder / _TRAINED):
        if (place / _MARK).is_file():
            return place
    if is_model_name(name_or_path):
        return resolve_model(name_or_path)
    shipped = ", ".join(shipped_names()) or "none"
    found = f"the folder has no {_MARK}" if folder.is_dir() else "there is no such folder"
    raise ModelError(f"{name_or_path!r} is not a shipped drafter ({shipped}), and {found}")


def named_drafter(name_or_path: str) -> NamedFolder:
    """`find_drafter`, with a name that lasts: schedules and profiles are read from anywhere, so paths are absolute."""
    folder = find_drafter(name_or_path)
    lasts = name_or_path in shipped_names() or is_model_name(name_or_path)
    return NamedFolder(name_or_path if lasts else str(folder.resolve()), folder)


def _fits(folder: Path, target: str) -> bool:
    """Whether a shipped folder was trained for a target; what was not trained at all fits any."""
    trained = json.loads((folder / _MARK).read_bytes()).get("speculators_config")
    return trained is None or trained["verifier"]["name_or_path"] == target
