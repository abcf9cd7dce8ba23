"""What rows cost by an engine's own benchmark: the output of llama-bench and llama-batched-bench, in every form of it.

A prompt of a few tokens is one pass over so many rows; `llama-bench -p 1,2,3,4,5,6,8,12,16 -n 32` times a curve in a
minute. Rows of `llama-batched-bench` are those of several sequences, each with a cache of its own.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple

from decoding.errors import ConfigError, cut, shown
from decoding.files import read_text

How = Literal["one sequence", "several sequences"]
MOST_ROWS: Final = 64
"""Longer prompts are read for their own sake, and tell nothing of verifications."""
_GROWING_ROWS: Final = 8
_HINT: Final = "write it by llama-bench -p 1,2,3,4,5,6,8,12,16 -n 32 -o jsonl, or by llama-batched-bench"
_TEST: Final = re.compile(r"(pp|tg) ?(\d+)(?: @ d(\d+))?$")
_SETTINGS: Final = ("n_threads", "n_gpu_layers", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn")
"""What curves of one file may differ in; of tables every column that is not of one test."""
_OF_ONE_TEST: Final = ("model", "size", "params", "test", "t/s")
_RULE: Final = re.compile(r"^[\s|:-]+$")

Row = Mapping[str, Any]


class BenchTime(NamedTuple):
    """Seconds of a pass, and the 90 % interval of its repeats; all the same where nothing is said of them."""

    time_s: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchCurve:
    """Times by rows of one model on one device.

    Attributes:
        model, device: as the engine names them.
        how: whether rows are of one sequence, as those of a verification, or of several.
        context: cached tokens before them.
        settings: of the benchmark, as far as it names them.
        times: by rows, ascending; the first is one.
        source: the file.
    """

    model: str
    device: str
    how: How
    context: int
    settings: str
    times: Mapping[int, BenchTime]
    source: str

    def ratio(self, rows: int) -> float:
        """Return the time of so many rows over that of one."""
        return self.times[rows].time_s / self.times[1].time_s

    @property
    def growth_per_row(self) -> tuple[float, float, float] | None:
        """By what share every further row, up to eight, slows a pass: fitted, least and most; None without any."""
        slopes = {rows: (self.ratio(rows) - 1) / (rows - 1) for rows in self.times if 1 < rows <= _GROWING_ROWS}
        if not slopes:
            return None
        weights = {rows: (rows - 1) ** 2 for rows in slopes}
        fitted = sum(slope * weights[rows] for rows, slope in slopes.items()) / sum(weights.values())
        return fitted, min(slopes.values()), max(slopes.values())


class _Of(NamedTuple):
    """What the times of one curve have in common."""

    model: str
    device: str
    how: How
    context: int
    settings: str


class _Sample(NamedTuple):
    """One time: of which curve, of how many rows, and whether it is of plain decoding."""

    curve: _Of
    rows: int
    time: BenchTime
    is_plain: bool


def read_bench(path: Path) -> tuple[BenchCurve, ...]:
    """Return the curves of a file.

    Raises:
        ConfigError: it cannot be read, is nothing that these benchmarks write, or has no pass over one row; names the
            file and the line.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {cut(str(error))}") from error
    samples = defaultdict[_Of, list[_Sample]](list)
    for line, row in _rows(text, path):
        try:
            found = _sample(row)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            told = f"{path}:{line}: no line of llama-bench or llama-batched-bench ({cut(str(error), 100)})"
            raise ConfigError(f"{told}; {_HINT}") from error
        if found is not None:
            samples[found.curve].append(found)
    if not samples:
        raise ConfigError(f"{path}: no times of 1 to {MOST_ROWS} rows; {_HINT}")
    return tuple(_curve(of, own, path) for of, own in samples.items())


def _curve(of: _Of, samples: list[_Sample], path: Path) -> BenchCurve:
    times = defaultdict[int, list[BenchTime]](list)
    has_plain = any(one.is_plain for one in samples)
    for one in samples:
        if one.rows > 1 or one.is_plain or not has_plain:
            times[one.rows].append(one.time)
    if 1 not in times:
        raise ConfigError(
            f"{path}: {of.model} after {of.context} tokens has no pass over one row to compare with; {_HINT}"
        )
    means = {rows: BenchTime(*map(fmean, zip(*own, strict=True))) for rows, own in sorted(times.items())}
    return BenchCurve(**of._asdict(), times=means, source=path.name)


def _rows(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    """Yield every row with its line, by the form that the text has."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    first = lines[0][1] if lines else ""
    if first.startswith("["):
        entries = _json(text, path, 1)
        yield from ((1, entry) for entry in entries)
    elif any(line.startswith("{") for _, line in lines):
        yield from ((number, _json(line, path, number)) for number, line in lines if line.startswith("{"))
    elif any(line.startswith("|") for _, line in lines):
        yield from _of_tables([(number, line) for number, line in lines if line.startswith("|")])
    else:
        reader = csv.DictReader(StringIO(text))
        yield from ((reader.line_num, row) for row in reader)


def _json(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{line}: no JSON ({cut(str(error), 100)}); {_HINT}") from error


def _of_tables(lines: list[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    """Yield the rows of tables in Markdown; a rule follows every heading."""
    heading: list[str] = []
    for place, (number, line) in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if place + 1 < len(lines) and _RULE.match(lines[place + 1][1]):
            heading = cells
        elif not _RULE.match(line):
            yield number, dict(zip(heading, cells, strict=False))


def _sample(row: Row) -> _Sample | None:
    """Return what a row tells; None of one that is about long prompts."""
    if "t_tg" in row or "T_TG s" in row:
        return _of_batched(row)
    if "test" in row:
        return _of_table(row)
    num_prompt, num_new, depth = (_count(row.get(name, 0)) for name in ("n_prompt", "n_gen", "n_depth"))
    mean_s, deviation_s = (float(row.get(name) or 0) * 1e-9 for name in ("avg_ns", "stddev_ns"))
    return _of_bench(row, (num_prompt, num_new), depth, _timed(mean_s, deviation_s))


def _of_table(row: Row) -> _Sample | None:
    """Return what a row of llama-bench's table tells, whose test is called pp8 or tg32."""
    found = _TEST.match(row["test"])
    if found is None:
        return None
    kind, count, depth = found[1], int(found[2]), int(found[3] or 0)
    rate, _, deviation = str(row["t/s"]).partition("±")
    time_s = count / float(rate)
    time = _timed(time_s, time_s * float(deviation or 0) / float(rate))
    return _of_bench(row, (count, 0) if kind == "pp" else (0, count), depth, time)


def _of_bench(row: Row, counts: tuple[int, int], depth: int, time: BenchTime) -> _Sample | None:
    num_prompt, num_new = counts
    if (num_prompt and num_new) or not 1 <= (num_prompt or 1) <= MOST_ROWS:
        return None
    model, device = _text(row, "model_type", "model"), _text(row, "gpu_info", "cpu_info", "backends", "backend")
    if num_new:
        time = BenchTime(*(seconds / num_new for seconds in time))
    of = _Of(model, device, "one sequence", depth, _settings(row))
    return _Sample(of, num_prompt or 1, time, is_plain=not num_prompt)


def _of_batched(row: Row) -> _Sample | None:
    """Return what llama-batched-bench tells: steps of so many sequences after their prompts."""
    names = ("pl", "tg", "pp", "t_tg") if "t_tg" in row else ("B", "TG", "PP", "T_TG s")
    rows, num_new, context = (_count(row[name]) for name in names[:3])
    if not 1 <= rows <= MOST_ROWS:
        return None
    time = _timed(float(row[names[3]]) / num_new, 0.0)
    of = _Of("the model", "the device", "several sequences", context, _settings(row))
    return _Sample(of, rows, time, is_plain=rows == 1)


def _settings(row: Row) -> str:
    """Return in which settings a row was timed, as `n_threads 4`."""
    names = [name for name in row if name not in _OF_ONE_TEST] if "test" in row else _SETTINGS
    return cut(", ".join(f"{name} {row[name]}" for name in names if row.get(name) not in (None, "")), 200)


def _timed(mean_s: float, deviation_s: float) -> BenchTime:
    if not (isfinite(mean_s) and isfinite(deviation_s) and mean_s > 0 and deviation_s >= 0):
        raise ValueError(f"a time of {mean_s:g} s")
    half_s = 1.645 * deviation_s
    return BenchTime(mean_s, max(0.0, mean_s - half_s), mean_s + half_s)


def _count(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or number < 0:
        raise ValueError(f"{shown(value)} is no count")
    return number


def _text(row: Row, *names: str) -> str:
    for name in names:
        if row.get(name):
            return cut(str(row[name]), 100)
    raise KeyError(names[0])
