"""The drafters and exit adapters that ship with the package, found by name. No weights are read here."""

from __future__ import annotations

from pathlib import Path

from decoding.errors import ModelError

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"
_MARK = "config.json"


def shipped_names() -> tuple[str, ...]:
    """Names of everything that ships, sorted."""
    return tuple(sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{_MARK}")))


def find_drafter(name_or_path: str) -> Path:
    """The folder of a drafter or of exit adapters: one that ships, or a folder of the user's.

    Raises:
        ModelError: there is neither; the shipped names are listed.
    """
    if name_or_path in shipped_names():
        return SHIPPED_FOLDER / name_or_path
    folder = Path(name_or_path).expanduser()
    if (folder / _MARK).is_file():
        return folder
    shipped = ", ".join(shipped_names()) or "none"
    found = f"the folder has no {_MARK}" if folder.is_dir() else "there is no such folder"
    msg = f"{name_or_path!r} is not a shipped drafter ({shipped}), and {found}"
    raise ModelError(msg)
