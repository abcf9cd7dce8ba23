"""A table of speed-ups that somebody published: a CSV file with a row per temperature and task, a column per method.

The first line that is not empty and no comment (`#`) names the columns: `temperature`, `task`, and the methods by any
name. Of those `Vanilla SD` has to be there; `Mirror-SD` and `EAGLE-3` are what is compared. Case, spaces, hyphens and
underscores in these names do not matter. An empty field means that nothing was published. Comments `# target: NAME`
and `# platform: NAME` say what the table is of.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

from decoding.errors import ConfigError, cut, shown
from decoding.files import named_path, read_text

_FOLDER: Final = Path(__file__).parent
_OF_ROUNDS: Final = "tokens-per-round"
"""What ships beside the tables of speed-ups."""
_MAX_BYTES: Final = 1 << 20
_MOST_SPEEDUP: Final = 1000.0
_KEYS: Final = ("temperature", "task")
VANILLA: Final = "vanillasd"
MIRROR: Final = "mirrorsd"
EAGLE: Final = "eagle3"
_NEEDED: Final = "temperature, task, Vanilla SD"
_ALIASES: Final[Mapping[str, str]] = {
    "vanilla": VANILLA,
    "vanillaspeculativedecoding": VANILLA,
    "mirror": MIRROR,
    "mirrorspeculativedecoding": MIRROR,
}


_ABOUT: Final = re.compile(r"^#\s*(target|platform):\s*(\S.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCell:
    """One row: what every method reached on one task at one temperature.

    Attributes:
        line: in the file.
        temperature, task: what it is about.
        vanilla: times plain decoding of speculation in turn with a draft model.
        mirror, eagle: the same of Mirror-SD and EAGLE-3; None where nothing was published.
        others: the same of all other columns, by their names in the file; only what was published.
    """

    line: int
    temperature: float
    task: str
    vanilla: float
    mirror: float | None
    eagle: float | None
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTable:
    """All of a file; `source` is its name, `target` and `platform` what it is of, where it says so."""

    source: str
    cells: tuple[PublishedCell, ...]
    target: str | None = None
    platform: str | None = None


def shipped_tables() -> tuple[str, ...]:
    """Return names of the tables that come with the product."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv") if path.stem != _OF_ROUNDS))


def load_table(name: str | Path) -> PublishedTable:
    """Return a table that ships, or a CSV file; `ConfigError` names file, line, column and value of what is wrong."""
    path = _FOLDER / f"{name}.csv" if str(name) in shipped_tables() else named_path(name)
    try:
        text = read_text(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        msg = f"{cut(str(path), 200)}: cannot be read ({error}); shipped tables: {', '.join(shipped_tables())}"
        raise ConfigError(msg) from error
    return parse_table(text, source=path.name if path.parent == _FOLDER else str(path))


def parse_table(text: str, *, source: str) -> PublishedTable:
    """Read a text as `load_table` reads a file; `source` names it in messages."""
    rows = _fields(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"), source)
    line, names = next(rows, (1, []))
    if not names:
        raise ConfigError(f"{source}: is empty; its first line names the columns: {_NEEDED}, ...")
    keys = _keys(f"{source}:{line}", names)
    cells: dict[tuple[float, str], PublishedCell] = {}
    for line, fields in rows:
        where = f"{source}:{line}"
        if len(fields) != len(names):
            raise ConfigError(f"{where}: has {len(fields)} fields, the columns are {len(names)}")
        cell = _cell(where, line, dict(zip(keys, zip(names, fields, strict=True), strict=True)))
        first = cells.setdefault((cell.temperature, cell.task.casefold()), cell)
        if first is not cell:
            what = f"temperature {cell.temperature:g} and task {shown(cell.task)}"
            raise ConfigError(f"{where}: {what} stand on line {first.line} already")
    if not cells:
        raise ConfigError(f"{source}: has no rows under its line of column names")
    return PublishedTable(source=source, cells=tuple(cells.values()), **dict(_ABOUT.findall(text)))


def _fields(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of every line that is not empty and no comment, with its number."""
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        for fields in reader:
            stripped = [field.strip() for field in fields]
            if any(stripped) and not stripped[0].startswith("#"):
                yield reader.line_num, stripped
    except csv.Error as error:
        raise ConfigError(f"{source}:{reader.line_num}: not valid CSV: {error}") from error


def _keys(where: str, names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for index, name in enumerate(names):
        plain = "".join(character for character in name.casefold() if character.isalnum())
        key = _ALIASES.get(plain, plain)
        if key in found or not key:
            what = f"column {shown(name)} stands there twice" if key else f"column {index + 1} has no name"
            raise ConfigError(f"{where}: {what}")
        found.append(key)
    for key in (*_KEYS, VANILLA):
        if key not in found:
            title = "Vanilla SD" if key == VANILLA else key
            msg = f"column {title!r} is missing; needed: {_NEEDED}; found: {', '.join(names)}"
            raise ConfigError(f"{where}: {msg}")
    return found


def _cell(where: str, line: int, row: Mapping[str, tuple[str, str]]) -> PublishedCell:
    """Return a row, whose fields are (name of the column, text) by the column's key."""
    task, temperature = row["task"][1], _number(row["temperature"][1])
    if not task:
        raise ConfigError(f"{where}: column 'task' is empty; it names what was decoded")
    speedups = {
        key: _speedup(f"{where}: column {name!r}", text) for key, (name, text) in row.items() if key not in _KEYS
    }
    if temperature is None or temperature < 0:
        raise ConfigError(f"{where}: column 'temperature': 0 or more, found {shown(row['temperature'][1])}")
    vanilla = speedups[VANILLA]
    if vanilla is None:
        column = f"{where}: column {row[VANILLA][0]!r}"
        raise ConfigError(f"{column} is empty; it is all that tells how often the text is accepted")
    mirror, eagle = speedups.get(MIRROR), speedups.get(EAGLE)
    others = {
        row[key][0]: value for key, value in speedups.items() if value is not None and key not in (VANILLA, MIRROR)
    }
    return PublishedCell(
        line=line, temperature=temperature, task=task, vanilla=vanilla, mirror=mirror, eagle=eagle, others=others
    )


def _speedup(column: str, text: str) -> float | None:
    if not text:
        return None
    value = _number(text)
    if value is None or not 0 < value <= _MOST_SPEEDUP:
        raise ConfigError(f"{column}: a speed-up is a number above 0, such as 2.34, found {shown(text)}")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
