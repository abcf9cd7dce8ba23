"""Where converted and downloaded models lie on this machine. No model is read here."""

import os
from pathlib import Path


def cache_root() -> Path:
    """Return this program's cache folder: ``$MIRRORSD_CACHE``, or ``mirrorsd`` in the user's cache folder."""
    own = os.environ.get("MIRRORSD_CACHE")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg else Path.home() / ".cache"
    return base / "mirrorsd"


def models_folder() -> Path:
    """Return the folder that holds one folder per cached model; it need not exist yet."""
    return cache_root() / "models"
