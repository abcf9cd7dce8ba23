"""A table of speed-ups that somebody published: a CSV file with a row per temperature and task, a column per method.

The first line that is not empty and no comment (`#`) names the columns: `temperature`, `task`, and the methods by any
name. Of those `Vanilla SD` has to be there; `Mirror-SD` and `EAGLE-3` are what is compared. Case, spaces, hyphens and
underscores in these names do not matter. An empty field means that nothing was published.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

from decoding.errors import ConfigError, cut, shown
from decoding.files import named_path, read_text

_FOLDER: Final = Path(__file__).parent
_MAX_BYTES: Final = 1 << 20
_MOST_SPEEDUP: Final = 1000.0
_KEYS: Final = ("temperature", "task")
VANILLA: Final = "vanillasd"
MIRROR: Final = "mirrorsd"
EAGLE: Final = "eagle3"
_TITLES: Final[Mapping[str, str]] = {VANILLA: "Vanilla SD", MIRROR: "Mirror-SD", EAGLE: "EAGLE-3"}
_ALIASES: Final[Mapping[str, str]] = {
    "vanilla": VANILLA,
    "vanillaspeculativedecoding": VANILLA,
    "mirror": MIRROR,
    "mirrorspeculativedecoding": MIRROR,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCell:
    """One row: what every method reached on one task at one temperature.

    Attributes:
        line: in the file.
        temperature, task: what it is about.
        vanilla: times plain decoding of speculation in turn with a draft model.
        mirror, eagle: the same of Mirror-SD and EAGLE-3; None where nothing was published.
    """

    line: int
    temperature: float
    task: str
    vanilla: float
    mirror: float | None
    eagle: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTable:
    """All of a file; `source` is its name."""

    source: str
    cells: tuple[PublishedCell, ...]


def shipped_tables() -> tuple[str, ...]:
    """Return names of the tables that come with the product."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv")))


def load_table(name: str | Path) -> PublishedTable:
    """Return a table that comes with the product, or a CSV file.

    Raises:
        ConfigError: it cannot be read or is wrong; names file, line, column and value.
    """
    path = _FOLDER / f"{name}.csv" if str(name) in shipped_tables() else named_path(name)
    try:
        text = read_text(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        msg = f"{cut(str(path), 200)}: cannot be read ({error}); shipped tables: {', '.join(shipped_tables())}"
        raise ConfigError(msg) from error
    return parse_table(text, source=path.name if path.parent == _FOLDER else str(path))


def parse_table(text: str, *, source: str) -> PublishedTable:
    """`load_table` of a text; `source` names it in messages."""
    rows = _Rows(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"), source)
    cells: dict[tuple[float, str], PublishedCell] = {}
    for cell in rows.cells():
        first = cells.setdefault((cell.temperature, cell.task.casefold()), cell)
        if first is not cell:
            what = f"temperature {cell.temperature:g} and task {shown(cell.task)}"
            raise ConfigError(f"{source}:{cell.line}: {what} stand on line {first.line} already")
    if not cells:
        raise ConfigError(f"{source}: has no rows under its line of column names")
    return PublishedTable(source=source, cells=tuple(cells.values()))


class _Rows:
    """The rows of a text, field by field."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines = self._fields(text)
        line, names = next(self._lines, (1, []))
        if not names:
            raise ConfigError(f"{source}: is empty; its first line names the columns: {', '.join(_needed())}, ...")
        self._names = names
        self._columns = self._found(line, names)

    def cells(self) -> Iterator[PublishedCell]:
        """Yield one after the other."""
        for line, fields in self._lines:
            if len(fields) != len(self._names):
                msg = f"{self._source}:{line}: has {len(fields)} fields, the columns are {len(self._names)}"
                raise ConfigError(msg)
            yield self._cell(line, fields)

    def _cell(self, line: int, fields: Sequence[str]) -> PublishedCell:
        task = fields[self._columns["task"]]
        if not task:
            raise ConfigError(f"{self._source}:{line}: column 'task' is empty; it names what was decoded")
        for index, name in enumerate(self._names):
            if index not in (self._columns["temperature"], self._columns["task"]):
                self._speedup(line, fields, index, name)
        vanilla = self._named(line, fields, VANILLA)
        if vanilla is None:
            where = f"{self._source}:{line}: column {self._names[self._columns[VANILLA]]!r}"
            raise ConfigError(f"{where} is empty; it is all that tells how often the text is accepted")
        return PublishedCell(
            line=line,
            temperature=self._temperature(line, fields),
            task=task,
            vanilla=vanilla,
            mirror=self._named(line, fields, MIRROR),
            eagle=self._named(line, fields, EAGLE),
        )

    def _named(self, line: int, fields: Sequence[str], method: str) -> float | None:
        index = self._columns.get(method)
        return None if index is None else self._speedup(line, fields, index, self._names[index])

    def _speedup(self, line: int, fields: Sequence[str], index: int, name: str) -> float | None:
        if not fields[index]:
            return None
        value = _number(fields[index])
        if value is None or not 0 < value <= _MOST_SPEEDUP:
            where = f"{self._source}:{line}: column {name!r}"
            raise ConfigError(f"{where}: a speed-up is a number above 0, such as 2.34, found {shown(fields[index])}")
        return value

    def _temperature(self, line: int, fields: Sequence[str]) -> float:
        found = fields[self._columns["temperature"]]
        value = _number(found)
        if value is None or value < 0:
            raise ConfigError(f"{self._source}:{line}: column 'temperature': 0 or more, found {shown(found)}")
        return value

    def _fields(self, text: str) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(text.splitlines(keepends=True), strict=True)
        try:
            for fields in reader:
                stripped = [field.strip() for field in fields]
                if any(stripped) and not stripped[0].startswith("#"):
                    yield reader.line_num, stripped
        except csv.Error as error:
            raise ConfigError(f"{self._source}:{reader.line_num}: not valid CSV: {error}") from error

    def _found(self, line: int, names: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for index, name in enumerate(names):
            key = _key(name)
            if key in found or not key:
                what = f"column {shown(name)} stands there twice" if key else f"column {index + 1} has no name"
                raise ConfigError(f"{self._source}:{line}: {what}")
            found[key] = index
        for key in (*_KEYS, VANILLA):
            if key not in found:
                msg = (
                    f"{self._source}:{line}: column {_TITLES.get(key, key)!r} is missing; needed are "
                    f"{', '.join(_needed())}; found are {', '.join(names)}"
                )
                raise ConfigError(msg)
        return found


def _needed() -> tuple[str, ...]:
    return (*_KEYS, _TITLES[VANILLA])


def _key(name: str) -> str:
    key = "".join(character for character in name.casefold() if character.isalnum())
    return _ALIASES.get(key, key)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
