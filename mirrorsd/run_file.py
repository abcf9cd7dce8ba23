"""A JSON Lines file that grows by one finished prompt at a time, and goes on where it was interrupted.

Every row carries the settings that made it, so a file explains itself and rows of different settings never mix.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from decoding.errors import ConfigError, shown
from decoding.files import parse_json
from decoding.validation import errors_as, told

SETTINGS = "settings"
PROMPT_ID = "prompt_id"
_PROMPT_HASH = "prompt_hash"
_TOLD = {
    "target_files": "other weights, tokenizer or config.json of a target of the same name",
    "drafter_files": "other files of a drafter of the same name",
    "exits_files": "other files of exits of the same name",
    "replay_files": "another record or other rates in a file of the same name",
}
"""Digests of files, of which names say nothing, and how a difference is told."""

_TokenId = Annotated[int, Field(ge=0, lt=1 << 31, strict=True)]
_Count = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]
_BEGINNING = f'{{"{PROMPT_ID}": "'.encode()
"""Of every row."""

_Seconds = Annotated[float, Field(ge=0, le=1e7, strict=True)]


class Row(BaseModel):
    """What every row has: its prompt, its settings, and what sums are made of. Other fields are kept as they are."""

    model_config = ConfigDict(extra="allow")

    prompt_id: str
    settings: dict[str, Any]
    token_ids: Annotated[list[_TokenId], Field(min_length=1)]
    num_rounds: _Count
    prefill_s: _Seconds
    decode_s: _Seconds
    prompt_hash: str | None = None
    events: list[str] = Field(default_factory=list)
    label: str = ""
    """What is not real about it: random weights, replayed acceptance."""

    @model_validator(mode="after")
    def _a_token_a_round(self) -> Self:
        if self.num_rounds > len(self.token_ids):
            raise ValueError(f"num_rounds is {self.num_rounds}, more than its {len(self.token_ids)} tokens")
        return self


class RunFile:
    """Appends rows to a file; a context manager. `rows` are the file's, by the prompt's id, in order."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open `path` for appending; what an interruption left of a row at its end is cut off.

        Raises `ConfigError`, and leaves it as it is, where it cannot be read or written, another run has it open, or it
        holds something else: a damaged row, one of other settings, or what no run wrote.
        """
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        with errors_as(ConfigError, f"{path}: cannot be used for rows"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)  # what a full disk refuses is not tried again when it is closed
        try:
            self._lock()
            self.rows = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def known(self, asked: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return the rows that answer some of the prompts, by id; `asked` has the hash of each text. A row answers one.

        Bare prompts are named after their file and line: where one has another name now, its text tells its row. Raises
        `ConfigError` for a row that answers another text under the same id.
        """
        renamed: dict[str, list[dict[str, Any]]] = {text: [] for text in asked.values()}
        for name, row in self.rows.items():
            if name not in asked and row.get(_PROMPT_HASH) in renamed:
                renamed[row[_PROMPT_HASH]].append(row)
        known = {}
        for name, text in asked.items():
            if name in self.rows:
                known[name] = self.rows[name]
                if known[name].get(_PROMPT_HASH, text) != text:
                    msg = f"{self.path}: the row of {shown(name)} answers another prompt; name another --out"
                    raise ConfigError(msg)
            elif renamed[text]:
                known[name] = renamed[text].pop(0) | {PROMPT_ID: name}
        return known

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row with its settings; it is on disk when this returns, and not at all after a `ConfigError`."""
        whole = {PROMPT_ID: row[PROMPT_ID], **row, SETTINGS: self._settings}
        line = json.dumps(whole, ensure_ascii=False, allow_nan=False)
        left, num_bytes = memoryview(line.encode("utf-8") + b"\n"), os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) :]
            self.rows[row[PROMPT_ID]] = dict(row)
            os.fsync(self._file.fileno())
        except OSError as error:
            self.rows.pop(row[PROMPT_ID], None)
            with suppress(OSError):
                self._file.truncate(num_bytes)
            msg = f"{self.path}: a row cannot be written ({error}); those before it are whole"
            raise ConfigError(msg) from error

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise ConfigError(f"{self.path}: is no regular file, which rows are read from too; name another --out")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{self.path}: another run is writing it ({error}); name another --out") from error

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the rows that are there; the file is changed only where all of it is ours."""
        with errors_as(ConfigError, f"{self.path}: cannot be used for rows"):
            self._file.seek(0)
            content = self._file.readall()
            whole = content.rfind(b"\n") + 1
            if _is_interrupted(content[whole:]):
                content = content[:whole]
            rows = {row[PROMPT_ID]: row for row in self._check(content.decode("utf-8").removesuffix("\n"))}
            self._file.truncate(len(content))
            if content and not content.endswith(b"\n"):
                self._file.write(b"\n")
        return rows

    def _check(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of `text`, all of them made with our settings, which are taken off."""
        for number, line in enumerate(text.split("\n") if text else (), 1):
            try:
                row = parse_json(line)
                Row.model_validate(row)
            except ValueError as error:
                msg = f"{self.path}:{number}: not a row that `mirrorsd run` wrote ({told(error)}); name another --out"
                raise ConfigError(msg) from error
            settings, own = row.pop(SETTINGS), self._settings
            if own.get("temperature") == 0:
                settings["seed"] = own["seed"]  # nothing was drawn
            if others := list(_others(settings, own)):
                msg = f"{self.path}:{number}: was made with other settings ({', '.join(others)})"
                raise ConfigError(f"{msg}; name another --out, or delete the file")
            if not own.keys() & _TOLD.keys() <= settings.keys():
                msg = f"{self.path}:{number}: has no digests of the files behind it: an earlier version wrote it"
                raise ConfigError(f"{msg}; name another --out, or delete the file")
            yield row


def _others(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words every setting that differs, of a schedule its own fields; digests that they lack do not."""
    for name in dict.fromkeys([*theirs, *ours]):
        one, other = theirs.get(name), ours.get(name)
        if one == other or (name in _TOLD and one is None):
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _others(one, other)
        elif name in _TOLD:
            yield _TOLD[name]
        else:
            yield f"{name} {shown(one)}, not {shown(other)}"


def _is_interrupted(line: bytes) -> bool:
    """Return whether a line without an end is what is left of a row, and not somebody's whole file."""
    if line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
        return False
    try:
        parse_json(line)
    except ValueError:
        return True
    return False
