"""How long a pass over several rows takes on a device, which decides whether speculation pays; and its picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, hypot, log
from pathlib import Path
from typing import Final

from costs.prices import pass_s
from costs.round_plan import LAYER
from decoding.errors import OutOfRangeError, PlanError, ProfileError
from hwprofiles.curves.row_prices import STEP_IN_WORDS
from hwprofiles.engines import engine_on, priced
from hwprofiles.quantity import Status
from hwprofiles.sheets import DeviceSheet
from planner.page_template import rendered
from planner.pictures.xy_plot import round_ticks
from planner.wording import known_in_words, listing
from sim.derived.device_speed import DeviceSpeed, device_speed
from sim.derived.roofline import RooflineCost, StoredModel
from sim.derived.sheet_numbers import GROWING_ROWS

_IN_WORDS: Final[dict[Status, str]] = {
    "measured": "measured",
    "datasheet": "by its data sheet",
    "derived": "derived",
    "guessed": "guessed",
}


@dataclass(frozen=True, slots=True)
class RowTime:
    """Time of a whole model's pass over some rows, its ratio to the pass of one row, and the 90 % ends of both.

    Errors that both passes share cancel in the ratio.
    """

    rows: int
    time_s: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCurve:
    """The times of a model's passes on one device, by rows, and the numbers that they come from.

    Attributes:
        engine: what runs the model; None where none is known.
        context: cached tokens before the rows.
    """

    model: StoredModel
    device: str
    engine: str | None
    speed: DeviceSpeed
    context: int
    rows: tuple[RowTime, ...]

    @property
    def source(self) -> str:
        """Where each number is from, and the measured curves behind the costs of rows, in words."""
        fields: dict[Status, list[str]] = {status: [] for status in _IN_WORDS}
        for one in self.speed.assumptions:
            fields[one.status].append(one.number)
        known = "; ".join(f"{_IN_WORDS[status]}: {listing(names)}" for status, names in fields.items() if names)
        prices = self.speed.prices
        if prices is None:
            return known
        step = STEP_IN_WORDS[prices.step]
        return f"{known}. Costs of rows are from measured curves, some of {step}; mainly: {prices.source}"

    @property
    def beyond(self) -> str:
        """What is assumed about passes of more rows than have a known cost, in words; empty if there are none."""
        most, speed = max(one.rows for one in self.rows), self.speed
        if speed.known_rows is None or most <= speed.known_rows:
            return ""
        if speed.prices is not None or speed.is_by_law:
            return (
                f"Some passes have more rows ({most}) than {known_in_words(speed.known_rows, by_law=speed.is_by_law)}."
            )
        return (
            f"growth_per_row holds for up to {GROWING_ROWS} rows: the times count further rows as free, and the upper "
            "ends of the intervals as costing the same."
        )


def row_curve(model: StoredModel, name: str, sheet: DeviceSheet, rows: Sequence[int], context: int) -> RowCurve:
    """Return the times of passes over each number of `rows` after `context` cached tokens.

    Raises:
        OutOfRangeError: the model was compiled for fewer rows on the device, or has fewer positions.
        PlanError: weights and cache do not fit into the device's memory.
        ProfileError: the sheet lacks the memory bandwidth, which is never guessed.
    """
    if sheet.memory_bytes_per_s is None:
        other = "another device" if sheet.memory_pool is None else "a platform that has it, by mirrorsd plan"
        raise ProfileError(f"the sheet of {name} ({sheet.name}) gives no memory_bytes_per_s: ask about {other}")
    shape, longest = model.shape, context + max(rows)
    if longest > shape.max_position:
        msg = f"{context:,} cached tokens and {max(rows)} rows: {longest:,} positions, and {shape.name} has"
        most = shape.max_position - max(rows)
        raise OutOfRangeError(f"{msg} {shape.max_position:,}" + (f"; --context {most} would do" if most > 0 else ""))
    needed_bytes = model.shape.weight_bytes(model.weights) + model.kv_bytes(context)
    if sheet.memory_bytes is not None and needed_bytes > sheet.memory_bytes.value:
        needed, there = (f"{num_bytes / 1e9:.1f} GB" for num_bytes in (needed_bytes, sheet.memory_bytes.value))
        raise PlanError(f"{model} needs {needed} with its cache, and {sheet.name} has {there}; ask for fewer bits")
    by_curves = priced(sheet, model.shape, model.weights)
    speed = device_speed(name, sheet, sheet.memory_bytes_per_s, by_curves, model.weights)
    cost = RooflineCost(device=speed, target=model, context=context)
    common = hypot(speed.reading_error, cost.facts(LAYER).relative_error)
    ideal = cost.at_peak(sheet.memory_bytes_per_s.highest)
    one_s, found = _pass_s(cost, 1, context), dict[int, RowTime]()
    known = () if speed.prices is None else [count for count in speed.prices.rows if count < max(rows)]
    for count in sorted({1, *known, *rows}):
        time_s, few_rows = _pass_s(cost, count, context), few_rows_error(cost, count, context)
        low, high = _ends(time_s, hypot(common, few_rows))
        low = min(time_s, max(low, _pass_s(ideal, count, context)))
        wide = RowTime(count, time_s, low, high, time_s / one_s, *_ends(time_s / one_s, few_rows))
        found[count] = _within_fewer(wide, found.values())
    return RowCurve(
        model=model,
        device=name,
        engine=engine_on(sheet, model.weights),
        speed=speed,
        context=context,
        rows=tuple(found[count] for count in rows),
    )


def _within_fewer(wide: RowTime, fewer: Iterable[RowTime]) -> RowTime:
    """Narrow a pass's interval by those of fewer rows: it takes at least as long as one, at most as several in turn."""
    narrow = wide if wide.rows > 1 else replace(wide, ratio_low=1.0)
    for one in fewer:
        in_turn = ceil(wide.rows / one.rows)
        narrow = replace(
            narrow,
            low=min(wide.time_s, max(narrow.low, one.low)),
            high=max(wide.time_s, min(narrow.high, in_turn * one.high)),
            ratio_low=min(wide.ratio, max(narrow.ratio_low, one.ratio_low)),
            ratio_high=max(wide.ratio, min(narrow.ratio_high, in_turn * one.ratio_high)),
        )
    return narrow


def _ends(value: float, error: float) -> tuple[float, float]:
    return value * exp(-error), value * exp(error)


def _pass_s(cost: RooflineCost, rows: int, context: int) -> float:
    assert cost.target is not None, "a curve is of a model"
    return pass_s(cost, cost.target.shape.num_layers, rows, context) + cost.device.graph_s


def few_rows_error(cost: RooflineCost, rows: int, context: int) -> float:
    """Return the relative error that a pass has because of its rows, beyond the error of reading the weights.

    It combines the error of `growth_per_row`, that of the device's FLOP/s, and whether rows beyond the first
    `GROWING_ROWS`, whose cost nobody states, cost nothing or as much as the first ones.
    """
    device = cost.device
    slower = replace(cost, device=replace(device, flops=device.flops / (1 + device.computing_error)))
    slowed = _pass_s(slower, rows, context) / _pass_s(cost, rows, context)

    def growth(one: RooflineCost) -> float:
        return _pass_s(one, rows, context) / _pass_s(one, 1, context)

    grown = growth(replace(cost, device=device.growing_on(rows))) / growth(cost)
    return hypot(device.growth_error(rows), log(slowed), log(grown))


_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 70, 690, 64, 360


def curve_svg(curve: RowCurve) -> str:
    """Return the curve as SVG, for light and dark pages."""
    ordered = sorted(curve.rows, key=lambda one: one.rows)
    most_s, last = max(one.high for one in ordered), ordered[-1].rows

    def x(rows: int) -> float:
        return round(_LEFT + (rows - 1) / max(1, last - 1) * (_RIGHT - _LEFT), 1)

    def y(seconds: float) -> float:
        return round(_BOTTOM - seconds / most_s * (_BOTTOM - _TOP), 1)

    lows = [(x(one.rows), y(one.low)) for one in ordered]
    highs = [(x(one.rows), y(one.high)) for one in reversed(ordered)]
    return rendered(
        Path(__file__).with_name("row_curve.svg"),
        curve=curve,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        bottom=_BOTTOM,
        band=lows + highs,
        points=[(x(one.rows), y(one.time_s), one.rows) for one in ordered],
        ticks=[(y(tick / 1e3), f"{tick:g}") for tick in round_ticks(0.0, 1e3 * most_s)],
    )
