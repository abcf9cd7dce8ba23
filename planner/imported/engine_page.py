"""A file that another program wrote, as rows with line numbers, so that errors can name the place."""

import codecs
import csv
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, Final

from decoding.errors import ConfigError, cut, shown
from decoding.files import read_bytes

_RULE: Final = re.compile(r"^[\s|:-]+$")
_ENTRY: Final = re.compile(r"[\[,]\s*(?=[^\s\]])")
"""What precedes an entry of a JSON array."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of files that PowerShell's `>` writes."""
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the user states because some formats do not say it.

    Attributes:
        target, context: the model whose layers a table times, and the cached tokens for which to read attention times.
        window: drafted tokens per verification.
        batch_size, new_tokens: sequences decoded at once in a latency benchmark, and new tokens of each.
    """

    target: str | None = None
    context: int = 512
    window: int | None = None
    batch_size: int | None = None
    new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PageRow:
    """One entry of a page: its fields, and its place in the file."""

    path: Path
    line: int
    fields: Mapping[str, Any]

    def wrong(self, field: str, expected: str) -> ConfigError:
        """Return an error that names file, line, field, value, and what was expected."""
        found = shown(self.fields[field]) if field in self.fields else "missing"
        return ConfigError(f"{self.path}:{self.line}: {cut(field, 80)} is {found}; expected {expected}")

    def number(self, field: str, *, least: float = 0.0, most: float = 1e15) -> float:
        """Return a number within bounds, which may be given as text (CSV); `ConfigError` for anything else."""
        value = self.fields.get(field)
        try:
            number = float("nan") if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not (isfinite(number) and least <= number <= most):
            raise self.wrong(field, f"a number from {least:g} to {most:g}")
        return number

    def time_s(self, field: str, unit_s: float = 1.0) -> float:
        """Return a time above zero, in seconds."""
        return self.number(field, least=1e-12) * unit_s

    def count(self, field: str, *, least: int = 0) -> int:
        """Return a whole number."""
        number = self.number(field, least=least, most=1e12)
        if number != int(number):
            raise self.wrong(field, "a whole number")
        return int(number)

    def text(self, *fields: str) -> str:
        """Return the first of `fields` that is not empty."""
        for field in fields:
            if self.fields.get(field):
                return cut(str(self.fields[field]), 100)
        raise self.wrong(fields[0], "a name")

    def inner(self, field: str) -> "PageRow":
        """Return a map that is the value of a field, as a row at the same place."""
        value = self.fields.get(field)
        if not isinstance(value, Mapping):
            raise self.wrong(field, "a map")
        return PageRow(self.path, self.line, value)


@dataclass(frozen=True)
class Page:
    """The text of a file, and its entries."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Return the page of a file; `ConfigError` where it cannot be read as text."""
        try:
            content = read_bytes(path, MAX_BYTES)
            return cls(path, content.decode("utf-16" if content.startswith(_UTF_16) else "utf-8-sig"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {cut(str(error))}") from error

    @cached_property
    def rows(self) -> tuple[PageRow, ...]:
        """All entries of JSON, JSON Lines (other lines are skipped), Markdown tables or CSV."""
        try:
            return tuple(PageRow(self.path, line, fields) for line, fields in self._entries())
        except RecursionError as error:
            raise ConfigError(f"{self.path}:1: nested too deeply") from error
        except csv.Error as error:
            raise ConfigError(f"{self.path}:1: not a table ({cut(str(error), 100)})") from error

    @property
    def fields(self) -> frozenset[str]:
        """The field names of the first entry; none for a page without entries."""
        return frozenset(str(name) for name in self.rows[0].fields) if self.rows else frozenset()

    def _entries(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        lines = [(number, line.strip()) for number, line in enumerate(self.text.splitlines(), 1) if line.strip()]
        if lines and lines[0][1][0] in "[{":
            with suppress(ValueError):
                document = json.loads(self.text)
                entries = self._array() if isinstance(document, list) else [(lines[0][0], document)]
                yield from ((line, one) for line, one in entries if isinstance(one, dict))
                return
        if lines and lines[0][1].startswith("["):
            self._parsed(self.text, 1)
        if any(line.startswith("{") for _, line in lines):
            parsed = ((number, self._parsed(line, number)) for number, line in lines if line.startswith("{"))
            yield from ((number, one) for number, one in parsed if isinstance(one, dict))
        elif any(line.startswith("|") for _, line in lines):
            yield from _of_tables([(number, line) for number, line in lines if line.startswith("|")])
        else:
            reader = csv.DictReader(StringIO(self.text), strict=True)
            for row in reader:
                if None in row.values():
                    raise ConfigError(f"{self.path}:{reader.line_num}: fewer values than the heading has names")
                yield reader.line_num, {str(name): value for name, value in row.items()}

    def _array(self) -> Iterator[tuple[int, Any]]:
        """Yield the entries of an array in JSON, each with the line on which it begins."""
        decoder, line, end = json.JSONDecoder(), 1, 0
        while (start := _ENTRY.search(self.text, end)) is not None:
            line += self.text.count("\n", end, start.end())
            one, behind = decoder.raw_decode(self.text, start.end())
            yield line, one
            line, end = line + self.text.count("\n", start.end(), behind), behind

    def _parsed(self, text: str, line: int) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{self.path}:{line}: not JSON ({cut(str(error), 100)})") from error


def _of_tables(lines: list[tuple[int, str]]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the rows of Markdown tables; a heading is a line before a rule (`|---|---|`)."""
    heading: list[str] = []
    for place, (number, line) in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if place + 1 < len(lines) and _RULE.match(lines[place + 1][1]):
            heading = cells
        elif not _RULE.match(line):
            yield number, dict(zip(heading, cells, strict=False))
