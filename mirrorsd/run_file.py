"""A JSON Lines file that grows by one finished prompt at a time, and goes on where it was interrupted.

Every row carries the settings that made it, so a file explains itself and rows of different settings never mix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decoding.errors import ConfigError, listed, mistake, shown
from decoding.files import parse_json

SETTINGS = "settings"
PROMPT_ID = "prompt_id"

TokenId = Annotated[int, Field(ge=0, lt=1 << 31, strict=True)]
Count = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=1e9, strict=True)]


class Row(BaseModel):
    """What every row has: its prompt, its settings, and what sums are made of. Other fields are kept as they are."""

    model_config = ConfigDict(extra="allow")

    prompt_id: str
    settings: dict[str, Any]
    token_ids: Annotated[list[TokenId], Field(min_length=1)]
    num_rounds: Count
    prefill_s: Seconds
    decode_s: Seconds
    label: str = ""
    """What is not real about it: random weights, replayed acceptance."""


class RunFile:
    """Appends rows to a file; a context manager, because the file stays open in between.

    Attributes:
        path: the file.
        rows: what is in the file, by the prompt's id and in order, without the settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open `path` for appending; what an interruption left of a row at its end is cut off.

        Raises:
            ConfigError: the file cannot be read or written, a row is damaged, or it was made with other settings.
        """
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_bytes() if path.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            self.rows = {row[PROMPT_ID]: row for row in self._check(whole.decode("utf-8"))}
            self._file = path.open("ab", buffering=0)  # what a full disk refuses is not tried again when it is closed
            self._file.truncate(len(whole))
        except (OSError, ValueError) as error:
            msg = f"{path}: cannot be used for rows ({error})"
            raise ConfigError(msg) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row with its settings; it is on disk when this returns.

        Raises:
            ConfigError: it cannot be written; nothing of it is in the file.
        """
        line = json.dumps({**row, SETTINGS: self._settings}, ensure_ascii=False, allow_nan=False)
        left, num_bytes = memoryview(line.encode("utf-8") + b"\n"), os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(num_bytes)
            msg = f"{self.path}: a row cannot be written ({error}); those before it are whole"
            raise ConfigError(msg) from error
        self.rows[row[PROMPT_ID]] = dict(row)

    def _check(self, text: str) -> Iterator[dict[str, Any]]:
        """The rows of `text`, all of them made with our settings, which are taken off."""
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                row = parse_json(line)
                Row.model_validate(row)
            except ValueError as error:
                found = error.errors(include_url=False) if isinstance(error, ValidationError) else None
                why = listed([mistake(one) for one in found[:3]]) if found else error
                msg = f"{self.path}:{number}: not a row that `mirrorsd run` wrote ({why}); name another --out"
                raise ConfigError(msg) from error
            settings = row.pop(SETTINGS)
            if settings != self._settings:
                msg = f"{self.path}:{number}: {self._difference(settings)}; name another --out, or delete the file"
                raise ConfigError(msg)
            yield row

    def _difference(self, settings: Mapping[str, Any]) -> str:
        names = [n for n in {**settings, **self._settings} if settings.get(n) != self._settings.get(n)]
        found = ", ".join(
            f"{name} {shown(settings.get(name))}, not {shown(self._settings.get(name))}" for name in names
        )
        return f"was made with other settings ({found})"
