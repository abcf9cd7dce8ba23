"""A JSON Lines file of a run's results, one row per finished prompt; an interrupted run continues in it.

Every row contains the settings of its run, so that rows of different settings are never mixed in one file.
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
"""Settings that are digests of files, and what to say if one differs."""

_TokenId = Annotated[int, Field(ge=0, lt=1 << 31, strict=True)]
_Count = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]
_BEGINNING = f'{{"{PROMPT_ID}": "'.encode()
"""How every row begins."""

_Seconds = Annotated[float, Field(ge=0, le=1e7, strict=True)]


class Row(BaseModel):
    """The required fields of a row; other fields are kept unchanged."""

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
    """What is not real about the run: random weights, or replayed acceptance."""

    @model_validator(mode="after")
    def _a_token_a_round(self) -> Self:
        if self.num_rounds > len(self.token_ids):
            raise ValueError(f"num_rounds is {self.num_rounds}, more than its {len(self.token_ids)} tokens")
        return self


class RunFile:
    """Appends rows to a file. It is a context manager; `rows` are the file's rows by prompt id, in order."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open `path` for appending, and cut off a half-written row at its end.

        Raises `ConfigError`, and does not change the file, if it cannot be read or written, another run has it open, or
        it has anything but whole rows of the same settings.
        """
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        with errors_as(ConfigError, f"{path}: cannot be used for rows"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)  # a buffer would retry writes to a full disk when it is closed
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
        """Return the rows that answer prompts, by id; `asked` has the hash of each prompt's text.

        Prompts without a name are named after file and line. If that name has changed, the row is found by its text;
        each row answers one prompt. Raises `ConfigError` for a row that answers another text under the same id.
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
        """Write a row with its settings to disk; after a `ConfigError` nothing of it is in the file."""
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
            raise ConfigError(f"{self.path}: is not a regular file; name another --out")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{self.path}: another run is writing it ({error}); name another --out") from error

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the file; it is changed only after all of its rows were checked."""
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
        """Yield the rows of `text` without their settings, which have to equal ours; else `ConfigError`."""
        for number, line in enumerate(text.split("\n") if text else (), 1):
            try:
                row = parse_json(line)
                Row.model_validate(row)
            except ValueError as error:
                msg = f"{self.path}:{number}: not a row that `mirrorsd run` wrote ({told(error)}); name another --out"
                raise ConfigError(msg) from error
            settings, own = row.pop(SETTINGS), self._settings
            if own.get("temperature") == 0:
                settings["seed"] = own["seed"]  # greedy decoding does not depend on the seed
            differences = list(_differences(settings, own))
            if differences:
                msg = f"{self.path}:{number}: was made with other settings ({', '.join(differences)})"
                raise ConfigError(f"{msg}; name another --out, or delete the file")
            if not own.keys() & _TOLD.keys() <= settings.keys():
                msg = f"{self.path}:{number}: has no digests of the files behind it: an earlier version wrote it"
                raise ConfigError(f"{msg}; name another --out, or delete the file")
            yield row


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words every setting (and every field of a schedule) that differs; missing digests are ignored."""
    for name in dict.fromkeys([*theirs, *ours]):
        one, other = theirs.get(name), ours.get(name)
        if one == other or (name in _TOLD and one is None):
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other)
        elif name in _TOLD:
            yield _TOLD[name]
        else:
            yield f"{name} {shown(one)}, not {shown(other)}"


def _is_interrupted(line: bytes) -> bool:
    """Return whether a line without a newline is a half-written row, and not other content."""
    if line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
        return False
    try:
        parse_json(line)
    except ValueError:
        return True
    return False
