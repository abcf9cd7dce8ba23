"""A table of speed-ups that somebody published: a CSV file with a row per temperature and task, a column per method.

The first line that is not empty and no comment (`#`) names the columns, of which `temperature`, `task` and `Vanilla SD`
have to be there; case, spaces, hyphens and underscores do not matter. An empty field means that nothing was published.
Comments `# target: NAME` and `# platform: NAME` say what the table is of.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from decoding.errors import ConfigError, cut, shown
from decoding.files import named_path, read_text
from planner.imported.engine_page import PageRow

_FOLDER: Final = Path(__file__).parent
_OF_ROUNDS: Final = "tokens-per-round"
"""What ships beside the tables of speed-ups."""
_MAX_BYTES: Final = 1 << 20
_LEAST_SPEEDUP, _MOST_SPEEDUP = 0.001, 1000.0
VANILLA: Final = "vanillasd"
MIRROR: Final = "mirrorsd"
EAGLE: Final = "eagle3"
_NEEDED: Final[Mapping[str, str]] = {"temperature": "temperature", "task": "task", VANILLA: "Vanilla SD"}
_ALIASES: Final[Mapping[str, str]] = {
    "vanilla": VANILLA,
    "vanillaspeculativedecoding": VANILLA,
    "mirror": MIRROR,
    "mirrorspeculativedecoding": MIRROR,
}
_ABOUT: Final = re.compile(r"^#[ \t]*(target|platform):(.*)$", re.MULTILINE)


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
        raise ConfigError(f"{source}: is empty; its first line names the columns: {', '.join(_NEEDED.values())}, ...")
    columns = _columns(f"{source}:{line}", names)
    cells: dict[tuple[float, str], PublishedCell] = {}
    for line, fields in rows:
        if len(fields) != len(names):
            raise ConfigError(f"{source}:{line}: has {len(fields)} fields, the columns are {len(names)}")
        row = PageRow(Path(source), line, dict(zip(names, fields, strict=True)))
        cell = _cell(row, columns)
        first = cells.setdefault((cell.temperature, cell.task.casefold()), cell)
        if first is not cell:
            what = f"temperature {cell.temperature:g} and task {shown(cell.task)}"
            raise ConfigError(f"{source}:{line}: {what} stand on line {first.line} already")
    if not cells:
        raise ConfigError(f"{source}: has no rows under its line of column names")
    about = {name: value.strip() for name, value in _ABOUT.findall(text) if value.strip()}
    return PublishedTable(source=source, cells=tuple(cells.values()), **about)


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


def _columns(where: str, names: Sequence[str]) -> dict[str, str]:
    """Return the names of the columns as they are written, by their plain ones."""
    found: dict[str, str] = {}
    for index, name in enumerate(names):
        key = _ALIASES.get(plain := plain_name(name), plain)
        if key in found or not key:
            what = f"column {shown(name)} stands there twice" if key else f"column {index + 1} has no name"
            raise ConfigError(f"{where}: {what}")
        found[key] = name
    for key, title in _NEEDED.items():
        if key not in found:
            msg = f"column {title!r} is missing; needed: {', '.join(_NEEDED.values())}; found: {', '.join(names)}"
            raise ConfigError(f"{where}: {msg}")
    return found


def plain_name(name: str) -> str:
    """Return a name without case, spaces, hyphens and the like: `EAGLE-3` and `eagle 3` are one."""
    return "".join(character for character in name.casefold() if character.isalnum())


def _cell(row: PageRow, columns: Mapping[str, str]) -> PublishedCell:
    task, temperature = row.text(columns["task"]), row.number(columns["temperature"])
    speedups = {
        key: row.number(name, least=_LEAST_SPEEDUP, most=_MOST_SPEEDUP)
        for key, name in columns.items()
        if key == VANILLA or (key not in _NEEDED and row.fields[name])
    }
    return PublishedCell(
        line=row.line,
        temperature=temperature,
        task=task,
        vanilla=speedups[VANILLA],
        mirror=speedups.get(MIRROR),
        eagle=speedups.get(EAGLE),
        others={columns[key]: value for key, value in speedups.items() if key not in (VANILLA, MIRROR)},
    )
