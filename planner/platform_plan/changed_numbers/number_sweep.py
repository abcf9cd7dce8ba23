"""Repeats a plan over a range of one of its numbers, or over a grid of two."""

from collections.abc import Sequence
from itertools import pairwise, product
from math import inf
from typing import Final, NamedTuple

from decoding.errors import ConfigError, MirrorsdError, shown
from hwprofiles.overrides import devices_named
from hwprofiles.quantity import number_in
from planner.platform_plan.changed_numbers.moved_question import MovedQuestion, Standing, Way
from planner.platform_plan.platform_plan import RATES, BreakEvenRate
from sim.derived.derived_profile import CONSTANTS
from sim.derived.sheet_numbers import MOVABLE

_STEPS: Final = 6
_MOST_CELLS: Final = 100
_IN_GIGA_BELOW: Final = 1e6
"""Bandwidths without a unit below this value are read as GB/s: no part has so few bytes per second."""


class SweptNumber(NamedTuple):
    """A number, by its name for `--set`, and the values to try."""

    field: str
    values: tuple[float, ...]


class SweepCell(NamedTuple):
    """The answer at one point of a sweep.

    Attributes:
        values: the values of the swept numbers.
        standing: what is fastest; None if nothing can be predicted: then `refused` says why.
        there: the fastest speculation that uses a device of the first number; None if there is none.
        even: the break-even acceptance; unknown in a grid, where it would take most of the time.
    """

    values: tuple[float, ...]
    standing: Standing | None
    there: Way | None = None
    even: BreakEvenRate = BreakEvenRate()
    refused: str | None = None


def parse_sweep(text: str) -> SweptNumber:
    """Return the number and values of `FIELD=LOW:HIGH`, `FIELD=LOW:HIGH:STEPS` or `FIELD=V,V,...`; units are allowed.

    Raises:
        ConfigError: the text has none of these forms.
    """
    field, equals, spec = (part.strip() for part in text.partition("="))
    try:
        if not equals or "." not in field:
            raise ValueError
        if ":" not in spec:
            return SweptNumber(field=field, values=tuple(sorted({_value(field, one) for one in spec.split(",")})))
        low, high, *steps = spec.split(":")
        ends, count = (_value(field, low), _value(field, high)), int(steps[0]) if steps else _STEPS
        if len(steps) > 1:
            raise ValueError
    except ValueError as error:
        msg = f"--sweep {shown(text)}: write PART.FIELD=LOW:HIGH, LOW:HIGH:STEPS or a list"
        raise ConfigError(f"{msg}, such as npu.memory_bytes_per_s=20:120") from error
    if not ends[0] < ends[1]:
        raise ConfigError(f"--sweep {shown(text)}: LOW has to be below HIGH")
    if not 2 <= count <= _MOST_CELLS:
        raise ConfigError(f"--sweep {shown(text)}: STEPS are from 2 to {_MOST_CELLS}, not {count}")
    step = (ends[1] - ends[0]) / (count - 1)
    return SweptNumber(field=field, values=tuple(ends[0] + step * place for place in range(count)))


def sweep_numbers(asked: MovedQuestion, numbers: Sequence[SweptNumber]) -> list[SweepCell]:
    """Return the answers over the grid of one or two numbers; the last number varies fastest.

    Raises:
        ConfigError: there are too many points, or a number is unknown or impossible.
    """
    if not 1 <= len(numbers) <= 2 or len({one.field for one in numbers}) < len(numbers):
        raise ConfigError("--sweep takes one number or two different ones")
    for one in numbers:
        _require_possible(one)
    points = list(product(*(one.values for one in numbers)))
    if len(points) > _MOST_CELLS:
        raise ConfigError(f"--sweep: {len(points):,} points are too many; {_MOST_CELLS} are the most")
    cells = [_cell(asked, [one.field for one in numbers], point) for point in points]
    if all(cell.standing is None for cell in cells):
        raise ConfigError(f"--sweep: {cells[0].refused}")
    return cells


def _require_possible(number: SweptNumber) -> None:
    """Raise `ConfigError` for an impossible value of a number that is on no data sheet; overrides check the others."""
    name = number.field.rpartition(".")[2]
    if name not in MOVABLE and number.field not in CONSTANTS:
        return
    low, high = (1e-6, 1.0) if name.endswith(("efficiency", "share")) else (float(name == "bf16_flops"), inf)
    high = 2.0 if name == "cache_efficiency" else high  # over weights' speed, so it may be above 1
    for value in number.values:
        if not low <= value <= high:
            ends = f"from {low:g} to {high:g}" if high < inf else f"at least {low:g}"
            raise ConfigError(f"--sweep {number.field}: {value:g} is not possible; values are {ends}")


def turns(cells: Sequence[SweepCell]) -> list[tuple[SweepCell, SweepCell]]:
    """Return neighbours along the last number whose fastest ways differ in devices or in how they decode."""
    return [
        (one, other)
        for one, other in pairwise(cells)
        if one.values[:-1] == other.values[:-1]
        and one.standing is not None
        and other.standing is not None
        and one.standing.leader.devices != other.standing.leader.devices
    ]


def _cell(asked: MovedQuestion, fields: Sequence[str], point: tuple[float, ...]) -> SweepCell:
    try:
        changes = dict(zip(fields, point, strict=True))
        standing = asked.standing(changes)
        there = _there(asked, fields[0], standing)
        even = _break_even(asked, changes) if len(fields) == 1 else BreakEvenRate()
        return SweepCell(point, standing, there, even)
    except MirrorsdError as error:
        return SweepCell(values=point, standing=None, refused=str(error))


def _there(asked: MovedQuestion, field: str, standing: Standing) -> Way | None:
    platform = asked.question.platform
    devices = devices_named(platform, field.rpartition(".")[0])
    ways = [
        way
        for way in standing.times_s
        if way.kind != "plain" and {*platform.members(way.pair.target), *platform.members(way.pair.draft)} & {*devices}
    ]
    return min(ways, key=standing.times_s.__getitem__, default=None)


def _break_even(asked: MovedQuestion, changes: dict[str, float]) -> BreakEvenRate:
    rate, now = asked.question.acceptance.field, asked.question.acceptance.value
    if rate in changes:
        return BreakEvenRate()
    return BreakEvenRate.of(sorted({*RATES, now}), lambda value: asked.standing(changes | {rate: value}).speedup)


def _value(field: str, text: str) -> float:
    value = number_in(text, field.rpartition(".")[2])
    is_bare = text.strip()[-1:].isdigit()
    return value * 1e9 if is_bare and field.endswith("bytes_per_s") and value < _IN_GIGA_BELOW else value
