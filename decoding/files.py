"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` next to `path`, force it to the disk, then put it in the place of `path`.

    Missing parent folders are made.

    Raises:
        OSError: it cannot be written; `path` is as it was and no part of it is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        scratch = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            scratch.chmod(_usual_mode())
            scratch.replace(path)
        except BaseException:  # an interrupt from the keyboard among them
            scratch.unlink(missing_ok=True)
            raise


def _usual_mode() -> int:
    """What a new file's permissions would be; temporary files are private."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
