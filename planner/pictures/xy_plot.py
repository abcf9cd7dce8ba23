"""Draws a plot of y over x as SVG: lines with markers, or labelled points."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from markupsafe import Markup

from planner.page_template import picture

Point = tuple[float, float]
_WIDTH: Final = 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 544, 16, 252
_NUM_TICKS: Final = 5
_LONG_NAME: Final = 30
"""If a name in the legend has more letters, the legend has one column instead of two."""
_MOST_LETTERS: Final = 72
"""Most letters of a line in the legend, by the width of the picture."""
_NICE: Final = (1, 2, 2.5, 5, 10)
COLOURS: Final = ("--first", "--second", "--third", "--fourth")
"""Names in the page's style sheet; lines of the same colour differ by `_DASHES`."""
_DASHES: Final = ("", "6 4", "2 3", "8 3 2 3", "12 3")


class Series(NamedTuple):
    """One line: its name in the legend, its points in the order in which they are joined, and labels of the points.

    `colour` is a name in the page's style sheet; empty for the next of `COLOURS`.
    """

    name: str
    points: Sequence[Point]
    joined: bool = True
    labels: Sequence[str] = ()
    colour: str = ""


def xy_plot(
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    alt: str,
    x_ticks: Iterable[float] = (),
    level: float | None = None,
    is_logarithmic: bool = False,
) -> Markup:
    """Return the plot, with y from zero; `level` is a dashed horizontal line.

    `x_ticks` replace round numbers; a logarithmic x axis needs them.
    """
    scale = log10 if is_logarithmic else float
    xs = [scale(x) for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    if level is not None:
        ys.append(level)
    x_low, x_high = min(xs), max(xs)
    span, most = (x_high - x_low) or 1.0, 1.06 * max(ys) or 1.0

    def across(x: float) -> float:
        return round(_LEFT + (scale(x) - x_low) / span * (_RIGHT - _LEFT), 1)

    def up(y: float) -> float:
        return round(_BOTTOM - y / most * (_BOTTOM - _TOP), 1)

    colours = [one.colour or COLOURS[index % len(COLOURS)] for index, one in enumerate(series)]
    of_lines = [colour if one.joined else "" for colour, one in zip(colours, series, strict=True)]
    columns = 1 if max(len(one.name) for one in series) > _LONG_NAME else 2
    names = [wrap(one.name, _MOST_LETTERS) for one in series]
    rows = (
        [*accumulate(map(len, names), initial=0)] if columns == 1 else [index // 2 for index in range(len(names) + 2)]
    )
    drawn = [
        {
            "name": names[index],
            "column": index % columns,
            "row": rows[index],
            "colour": colours[index],
            "dash": _DASHES[of_lines[:index].count(colours[index]) % len(_DASHES)],
            "joined": one.joined,
            "points": [(across(x), up(y)) for x, y in one.points],
            "told": [f"{x:.3g}: {y:.3g}" for x, y in one.points],
            "labels": [*one.labels, *[""] * (len(one.points) - len(one.labels))],
        }
        for index, one in enumerate(series)
    ]
    ticks = list(x_ticks) or round_ticks(x_low, x_high)
    return picture(
        Path(__file__).with_name("xy_plot.svg"),
        width=_WIDTH,
        height=_BOTTOM + 48 + (20 * rows[-1] if len(series) > 1 else 0),
        left=_LEFT,
        right=_RIGHT,
        bottom=_BOTTOM,
        x_ticks=[(across(tick), f"{tick:g}") for tick in ticks],
        y_ticks=[(up(tick), f"{tick:g}") for tick in round_ticks(0.0, most)],
        level=None if level is None else up(level),
        series=drawn,
        x_title=x_title,
        y_title=y_title,
        alt=alt,
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from `low` to `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / _NUM_TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in _NICE if factor * power >= rough * (1 - 1e-9))
    first = -floor(-low / step + 1e-9)
    return [round(count * step, 12) for count in range(first, floor(high / step + 1e-9) + 1)]
