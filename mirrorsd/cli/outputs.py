"""Where a verb writes, tried before its work, which may take long; and the `--json` of every verb."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrorsd.json_text import json_text, path_from

STDOUT = "-"


def file_that_can_be_written(path: Path | None) -> Path | None:
    """The option's file; raises `ConfigError` where it could not be written."""
    from decoding.files import require_writable

    if path is not None:
        require_writable(path)
    return path


def output(what: str) -> Any:
    """An option for a file that is not written unless it is named; `what` is its help."""
    return typer.Option(help=what, show_default=False, callback=file_that_can_be_written)


def folder_that_can_be_written(path: Path | None) -> Path | None:
    """The option's folder; raises `ConfigError` where no file could be written into it."""
    file_that_can_be_written(None if path is None else path / "file")
    return path


def json_that_can_be_written(destination: str | None) -> str | None:
    """The option's file, or stdout."""
    file_that_can_be_written(None if destination in (None, STDOUT) else Path(destination))
    return destination


_NAME = "--json"

JsonOption = Annotated[
    str | None,
    typer.Option(
        _NAME,
        metavar="[PATH]",
        help="Write the result as JSON to PATH; without PATH, or with [bold]-[/], to stdout in place of the text.",
        show_default=False,
        callback=json_that_can_be_written,
    ),
]


def with_default_destination(args: Sequence[str]) -> list[str]:
    """Give a `--json` that no value follows the value `-`: Typer's options cannot have an optional one."""
    complete: list[str] = []
    for place, arg in enumerate(args):
        complete.append(arg)
        following = args[place + 1 : place + 2]
        if arg == _NAME and (not following or (following[0] != STDOUT and following[0].startswith("-"))):
            complete.append(STDOUT)
    return complete


def write_json(data: dict[str, Any], destination: str | None, *, relative: Sequence[str] = ()) -> bool:
    """Write `data` to where `--json` points, its `relative` paths as seen from there; return whether stdout is free."""
    if destination is None:
        return True
    if destination == STDOUT:
        typer.echo(json_text(data).encode(), nl=False)  # JSON is UTF-8, whatever the terminal's encoding
        return False
    from decoding.yaml_file import write_atomically

    path = Path(destination)
    moved = {name: path_from(path.parent, Path(data[name])) for name in relative}
    write_atomically(path, json_text(data | moved))
    return True
