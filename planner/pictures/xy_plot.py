"""A plot of numbers over numbers: lines with markers, or points with names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Final, NamedTuple

from markupsafe import Markup

from planner.page_template import page_template

Point = tuple[float, float]
_WIDTH: Final = 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 544, 16, 252
_NUM_TICKS: Final = 5
_LONG_NAME: Final = 34
"""Letters from which on names in the legend take a line each."""
_NICE: Final = (1, 2, 2.5, 5, 10)
_STEPS: Final = ((2.0, ()), (20.0, (1, 1.5, 2, 3, 4, 5, 7)), (float("inf"), (1, 2, 5)))
"""Ticks of a decade, by up to which ratio of the ends of a logarithmic axis; none: round numbers."""
COLOURS: Final = ("var(--first)", "var(--second)", "var(--third)", "var(--fourth)")
"""Of the style sheet of the page; a line after the last one takes the first one's again, dashed."""


class Series(NamedTuple):
    """One line: its name in the legend, if any, and points in the order in which they are joined.

    Attributes:
        labels: texts beside the points.
        colour: one of the page's in place of the next of `COLOURS`.
        sign: a marker as text in place of a dot.
        dash: lengths of dashes and gaps.
        is_hollow: whether dots are rings.
    """

    name: str
    points: Sequence[Point]
    joined: bool = True
    labels: Sequence[str] = ()
    colour: str = ""
    sign: str = ""
    dash: str = ""
    is_hollow: bool = False


class Axis(NamedTuple):
    """An axis: `ticks` replace round numbers, and `ends` those of the points, of which heights begin at zero."""

    title: str
    ticks: Sequence[float] = ()
    ends: Point | None = None
    is_logarithmic: bool = False

    def scale(self, low: float, high: float) -> Callable[[float], float]:
        """Return the function that says where between two ends, as a share, a number stands."""
        of = log10 if self.is_logarithmic else float
        start, span = of(low), (of(high) - of(low)) or 1.0
        return lambda number: (of(number) - start) / span

    def marked(self, low: float, high: float) -> Sequence[float]:
        """Return the ticks between two ends."""
        if self.ticks:
            return self.ticks
        steps = next(steps for most, steps in _STEPS if high <= most * low) if self.is_logarithmic else ()
        if not steps:
            return round_ticks(low, high)
        numbers = [step * 10.0**decade for decade in range(floor(log10(low)), ceil(log10(high)) + 1) for step in steps]
        return [number for number in numbers if low <= number <= high]


def xy_plot(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    alt: str,
    level: float | None = None,
    level_name: str = "",
    upright: tuple[float, str] | None = None,
) -> Markup:
    """Return the plot; `level` is a dashed line across, and `upright` one from bottom to top, with its name."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points] + ([] if level is None else [level])
    x_ends, y_ends = x.ends or (min(xs), max(xs)), y.ends or (0.0, 1.06 * max(ys))
    x_scale, y_scale = x.scale(*x_ends), y.scale(*y_ends)

    def at(x: float, y: float) -> Point:
        return round(_LEFT + x_scale(x) * (_RIGHT - _LEFT), 1), round(_BOTTOM - y_scale(y) * (_BOTTOM - _TOP), 1)

    drawn = [
        {
            "name": one.name,
            "colour": one.colour or COLOURS[index % len(COLOURS)],
            "dash": one.dash or ("6 4" if index >= len(COLOURS) and not one.colour else ""),
            "joined": one.joined,
            "sign": one.sign,
            "is_hollow": one.is_hollow,
            "points": [
                (*at(*point), f"{one.name or alt}: {point[0]:.4g}, {point[1]:.4g}", label)
                for point, label in zip(one.points, [*one.labels, *[""] * len(one.points)], strict=False)
            ],
        }
        for index, one in enumerate(series)
    ]
    named = [one for one, of in zip(drawn, series, strict=True) if of.name]
    columns = 1 if max((len(one.name) for one in series), default=0) > _LONG_NAME else 2
    svg = page_template(Path(__file__).with_name("xy_plot.svg"), {}).render(
        width=_WIDTH,
        height=_BOTTOM + 48 + 20 * ceil(len(named) / columns),
        columns=columns,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        x_ticks=[(at(tick, y_ends[0])[0], f"{tick:g}") for tick in x.marked(*x_ends)],
        y_ticks=[(at(x_ends[0], tick)[1], f"{tick:g}") for tick in y.marked(*y_ends)],
        level=None if level is None else at(x_ends[0], level)[1],
        level_name=level_name,
        upright=None if upright is None else (at(upright[0], y_ends[0])[0], upright[1]),
        series=drawn,
        named=named,
        x_title=x.title,
        y_title=y.title,
        alt=alt,
    )
    return Markup(svg)  # noqa: S704  the template escapes what it shows


def round_ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers within two bounds."""
    if high <= low:
        return [low]
    rough = (high - low) / _NUM_TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in _NICE if factor * power >= rough * (1 - 1e-9))
    first = -floor(-low / step + 1e-9)
    return [round(count * step, 12) for count in range(first, floor(high / step + 1e-9) + 1)]
