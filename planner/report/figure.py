"""What all figures share: plain Plotly dictionaries whose colours are names of the page's style sheet."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from decoding.schedule import Schedule
from planner.wording import Kind, kind_of

KIND_COLOUR: Final[dict[Kind, str]] = {
    "plain": "var(--plain)",
    "lookup": "var(--tree)",
    "synchronous": "var(--sync)",
    "tree": "var(--tree)",
    "mirror": "var(--mirror)",
}


class Stroke(NamedTuple):
    """What tells a line from others without its colour: marker and dash as Plotly calls them, the marker as text."""

    symbol: str
    sign: str
    dash: str


STROKES: Final = (
    Stroke("circle", "●", "solid"),
    Stroke("square", "■", "dash"),
    Stroke("diamond", "◆", "dot"),
    Stroke("triangle-up", "▲", "dashdot"),
    Stroke("circle-open", "○", "solid"),
    Stroke("square-open", "□", "dash"),
    Stroke("diamond-open", "◇", "dot"),
    Stroke("triangle-up-open", "△", "dashdot"),
    Stroke("triangle-down", "▼", "longdash"),
    Stroke("triangle-down-open", "▽", "longdash"),
    Stroke("cross", "✚", "solid"),
    Stroke("x", "✖", "dash"),
)
"""In the order in which lines get them."""
INK: Final = "var(--ink)"
SOFT: Final = "var(--soft)"
LINE: Final = "var(--line)"
PAPER: Final = "var(--paper)"


class Figure(NamedTuple):
    """One Plotly figure; its name is unique on the page, and `alt` says what it shows to those who cannot see it.

    Colours may be `var(--name)` and are resolved by the page's script, once for light and once for dark. Below
    `min_width_px` the figure scrolls sideways instead of shrinking.
    """

    name: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    min_width_px: int = 0


class Key(NamedTuple):
    """A legend entry: a colour and its meaning; `style` is a class of the style sheet."""

    colour: str
    label: str
    style: str = "fill"


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """Return a quiet axis: thin grid, no frame."""
    return {
        "title": {"text": title, "standoff": 10, "font": {"size": 13, "color": SOFT}},
        "ticklabelstandoff": 4,
        "gridcolor": LINE,
        "zeroline": False,
        "fixedrange": True,
        "automargin": True,
        "ticks": "",
    } | settings


def layout(*, height_px: int, **settings: Any) -> dict[str, Any]:
    """Return what all figures have in common."""
    return {
        "height": height_px,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "showlegend": False,
        "dragmode": False,
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": SOFT, "font": {"color": INK}},
    } | settings


def scatter(mode: str, x: Sequence[float], y: Sequence[float], **settings: Any) -> dict[str, Any]:
    """Return a trace of lines, markers or text at points."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y} | settings


def note(text: str, *, x: float, y: float, **settings: Any) -> dict[str, Any]:
    """Return a label inside the figure."""
    return {"text": text, "x": x, "y": y, "showarrow": False, "font": {"size": 12, "color": INK}} | settings


def short_kind(schedule: Schedule, placement: str) -> str:
    """Return a kind of schedule as a label of a line: `mirror exit`, `synchronous pooled`, `plain split`, `EAGLE-3`."""
    if schedule.traits.overlaps:
        return f"mirror {schedule.root_source}"
    if schedule.is_tree:
        return schedule.traits.title.removeprefix("speculative ")
    return f"{kind_of(schedule)} {placement}"


def end_labels(
    ends: Sequence[tuple[str, float, str]], axis_range: tuple[float, float], *, num_lines: int
) -> list[dict[str, Any]]:
    """Return names at the right ends of lines, moved apart; `ends` are (name, height, colour)."""
    low, high = axis_range
    places = spread_apart([(height - low) / (high - low) for _, height, _ in ends], 1 / num_lines)
    # Places are shares of the figure's height: a label at a height beyond the axis would not be drawn.
    return [
        note(name, x=1, y=place, xref="paper", yref="paper", xanchor="left", yanchor="middle", xshift=8)
        | {"font": {"size": 12, "color": colour}}
        for (name, _, colour), place in zip(ends, places, strict=True)
    ]


def spread_apart(values: list[float], gap: float) -> list[float]:
    """Return `values` moved so that any two are at least `gap` apart: crowds spread evenly around their middle."""
    crowds: list[list[int]] = []

    def places(crowd: list[int]) -> list[float]:
        middle = sum(values[index] for index in crowd) / len(crowd)
        return [middle + (place - (len(crowd) - 1) / 2) * gap for place in range(len(crowd))]

    for index in sorted(range(len(values)), key=values.__getitem__):
        crowds.append([index])
        while len(crowds) > 1 and places(crowds[-2])[-1] + gap > places(crowds[-1])[0]:
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    spread = {index: place for crowd in crowds for index, place in zip(crowd, places(crowd), strict=True)}
    return [spread[index] for index in range(len(values))]
