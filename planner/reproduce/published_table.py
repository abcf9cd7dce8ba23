"""Reads a table of published speed-ups: a CSV file with a row per temperature and task, and a column per method.

The first line that is neither empty nor a comment (`#`) names the columns. `temperature`, `task` and `Vanilla SD` are
required; case, spaces, hyphens and underscores do not matter. An empty field means that nothing was published. Comments
`# target: NAME` and `# platform: NAME` name the model and the machine of the table.
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
"""A shipped CSV file that is no table of speed-ups."""
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
    """One row: the speed-up over plain decoding of every method on one task at one temperature.

    Attributes:
        line: number of its line in the file.
        vanilla: speed-up of a draft model that takes turns with the target.
        mirror, eagle: speed-up of Mirror-SD and of EAGLE-3; None where nothing was published.
        others: published speed-ups of all methods but these first two, by the names in the file; EAGLE-3 is included.
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
    """All rows of a file; `source` is its name, `target` and `platform` are None where it does not name them."""

    source: str
    cells: tuple[PublishedCell, ...]
    target: str | None = None
    platform: str | None = None


def shipped_tables() -> tuple[str, ...]:
    """Return the names of the shipped tables."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv") if path.stem != _OF_ROUNDS))


def load_table(name: str | Path) -> PublishedTable:
    """Return a shipped table, or one in a CSV file; a `ConfigError` names file, line, column and wrong value."""
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
            raise ConfigError(f"{source}:{line}: has {len(fields)} fields, but there are {len(names)} columns")
        row = PageRow(Path(source), line, dict(zip(names, fields, strict=True)))
        cell = _cell(row, columns)
        first = cells.setdefault((cell.temperature, cell.task.casefold()), cell)
        if first is not cell:
            what = f"temperature {cell.temperature:g} and task {shown(cell.task)}"
            raise ConfigError(f"{source}:{line}: {what} are already on line {first.line}")
    if not cells:
        raise ConfigError(f"{source}: has no rows under its line of column names")
    about = {name: value.strip() for name, value in _ABOUT.findall(text) if value.strip()}
    return PublishedTable(source=source, cells=tuple(cells.values()), **about)


def _fields(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of every line that is neither empty nor a comment."""
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        for fields in reader:
            stripped = [field.strip() for field in fields]
            if any(stripped) and not stripped[0].startswith("#"):
                yield reader.line_num, stripped
    except csv.Error as error:
        raise ConfigError(f"{source}:{reader.line_num}: not valid CSV: {error}") from error


def _columns(where: str, names: Sequence[str]) -> dict[str, str]:
    """Return the names of the columns as written in the file, by `plain_name` (aliases resolved)."""
    found: dict[str, str] = {}
    for index, name in enumerate(names):
        plain = plain_name(name)
        key = _ALIASES.get(plain, plain)
        if key in found or not key:
            what = f"column {shown(name)} is there twice" if key else f"column {index + 1} has no name"
            raise ConfigError(f"{where}: {what}")
        found[key] = name
    for key, title in _NEEDED.items():
        if key not in found:
            msg = f"column {title!r} is missing; needed: {', '.join(_NEEDED.values())}; found: {', '.join(names)}"
            raise ConfigError(f"{where}: {msg}")
    return found


def plain_name(name: str) -> str:
    """Return the lower-case letters and digits of a name, so that `EAGLE-3` and `eagle 3` are equal."""
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
