"""Where a verb writes: tried before its work, which may take long. Callbacks of the options that name it."""

from __future__ import annotations

from pathlib import Path

STDOUT = "-"


def file_that_can_be_written(path: Path | None) -> Path | None:
    """The option's file; raises `ConfigError` where it could not be written."""
    from decoding.files import require_writable

    if path is not None:
        require_writable(path)
    return path


def folder_that_can_be_written(path: Path | None) -> Path | None:
    """The option's folder; raises `ConfigError` where no file could be written into it."""
    file_that_can_be_written(None if path is None else path / "file")
    return path


def json_that_can_be_written(destination: str | None) -> str | None:
    """The option's file, or stdout."""
    file_that_can_be_written(None if destination in (None, STDOUT) else Path(destination))
    return destination
