"""Results as strict JSON, which has neither NaN nor infinity; and paths in it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def json_text(data: Any) -> str:
    """Indented JSON with a final newline; numbers that are not finite become null."""
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def path_from(folder: Path, path: Path) -> str:
    """`path` as seen from `folder`: files that refer to each other this way can be moved together."""
    return os.path.relpath(path.resolve(), folder.resolve())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value
