"""What the search found: a figure of the best of each kind at every window, and a table of every exit layer."""

from itertools import cycle
from math import ceil, floor, log10
from typing import Any

from decoding.schedule import MAX_WINDOW
from planner.report.figure import (
    KIND_COLOUR,
    PAPER,
    SOFT,
    STROKES,
    Figure,
    Stroke,
    axis,
    end_labels,
    layout,
    scatter,
    short_kind,
)
from planner.search.search import Candidate, SearchResult
from planner.wording import in_ms, kind_of, milliseconds

DASHES = "- -"
"""Plain decoding's mark as text."""
COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
FINE = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.4, 2.6, 2.8, 3, 3.3, 3.6, 4, 4.4, 4.8, 5.2, 5.6, 6, 6.5, 7, 8, 9)


Line = dict[int, Candidate]
"""The best candidate by the number of drafted tokens."""


def landscape(result: SearchResult) -> Figure | None:
    """Plot the best time per token over drafted tokens, a line per kind; None if nothing drafts. Axes are of ratios."""
    lines = _best_lines(result)
    if not lines:
        return None
    plain = result.best(kind="plain")
    ends = {kind: line[max(line)] for kind, line in lines.items()}
    ends |= {} if plain is None else {"plain decoding": plain}
    shown = [*ends.values(), *(candidate for line in lines.values() for candidate in line.values())]
    fastest, slowest = (log10(choose(candidate.tpot_s * 1e3 for candidate in shown)) for choose in (min, max))
    margin = max(0.02, 0.1 * (slowest - fastest))
    low, high = fastest - margin, slowest + margin / 2  # the star's label is below
    num_text_lines = max(17, len(ends) + 2)
    strokes = dict(zip(lines, cycle(STROKES)))
    dashes = {"type": "line", "xref": "paper", "x0": 0, "x1": 1}
    dashes |= {"line": {"color": KIND_COLOUR["plain"], "width": 2, "dash": "dash"}}
    names = [
        (f"{strokes[kind].sign if kind in strokes else DASHES} {kind}", log10(end.tpot_s * 1e3), _colour(end))
        for kind, end in ends.items()
    ]
    return Figure(
        name="landscape",
        alt="Best predicted time per token of every kind of decoding over the number of drafted tokens",
        data=[_line(kind, line, strokes[kind]) for kind, line in lines.items()] + _star(result.winner),
        layout=layout(
            height_px=22 * num_text_lines,
            annotations=end_labels(names, (low, high), num_lines=num_text_lines),
            shapes=[] if plain is None else [dashes | {"y0": plain.tpot_s * 1e3, "y1": plain.tpot_s * 1e3}],
            margin={"l": 56, "r": 148, "t": 24, "b": 48},
            xaxis=_window_axis(sorted(set().union(*lines.values()))),
            yaxis=axis("ms per token, logarithmic", type="log", range=[low, high], **_ticks(fastest, slowest)),
        ),
        min_width_px=560,
    )


def _best_lines(result: SearchResult) -> dict[str, Line]:
    """Return a line by kind; candidates come fastest first."""
    lines: dict[str, Line] = {}
    for candidate in result.candidates:
        num_drafted = _num_drafted(candidate)
        if num_drafted:
            kind = short_kind(candidate.schedule, candidate.placement)
            lines.setdefault(kind, {}).setdefault(num_drafted, candidate)
    return lines


def _num_drafted(candidate: Candidate) -> int:
    return candidate.schedule.num_rows - 1


def _window_axis(windows: list[int]) -> dict[str, Any]:
    """Return an axis of even steps for chains; ratios where trees are much wider."""
    first, last = windows[0], windows[-1]
    if last <= MAX_WINDOW:
        return axis("drafted tokens per round", dtick=1, range=[first - 0.3, last + 0.15])
    shown = [window for window in windows if window <= 4 or window % 2 == 0]
    scale = {"type": "log", "tickvals": shown, "ticktext": [str(window) for window in shown]}
    ends = [log10(first) - 0.04, log10(last) + 0.02]
    return axis("drafted tokens per round, logarithmic", **scale, range=ends)


def exit_layers(result: SearchResult) -> list[tuple[str, ...]]:
    """Return mirror's best milliseconds per token by exit layer and window, under a heading; none of fewer than two."""
    best: dict[tuple[int, int], Candidate] = {}
    for candidate in result.candidates:
        schedule = candidate.schedule
        if schedule.exit_layer is not None:
            best.setdefault((schedule.exit_layer, schedule.num_speculative_tokens), candidate)
    layers, windows = (sorted({*own}) for own in zip(*best, strict=True)) if best else ([], [])
    if len(layers) < 2:
        return []
    cells = {place: in_ms(one.tpot_s) for place, one in best.items()}
    rows = [(f"layer {layer}", *(cells.get((layer, window), "") for window in windows)) for layer in layers]
    return [("exit after", *(f"{window} drafted" for window in windows)), *rows]


def _ticks(low: float, high: float) -> dict[str, Any]:
    decades = range(floor(low) - 1, ceil(high) + 1)
    steps = FINE if high - low < 0.4 else COARSE
    values = [step * 10.0**decade for decade in decades for step in steps]
    shown = [value for value in values if low - 0.03 <= log10(value) <= high + 0.03]
    return {"tickvals": shown, "ticktext": [f"{value:g}" for value in shown]}


def _colour(candidate: Candidate) -> str:
    return KIND_COLOUR[kind_of(candidate.schedule)]


def _line(kind: str, line: Line, stroke: Stroke) -> dict[str, Any]:
    best = [line[window] for window in sorted(line)]
    return scatter(
        "lines+markers",
        [_num_drafted(candidate) for candidate in best],
        [candidate.tpot_s * 1e3 for candidate in best],
        name=kind,
        line={"color": _colour(best[0]), "width": 2, "dash": stroke.dash},
        marker={"size": 9, "symbol": stroke.symbol},
        hovertemplate=f"{kind}, %{{x}} drafted: %{{y:.2f}} ms per token<extra></extra>",
    )


def _star(winner: Candidate) -> list[dict[str, Any]]:
    if not _num_drafted(winner):
        return []
    marker = {"symbol": "star", "size": 16, "color": _colour(winner)}
    return [
        scatter(
            "markers+text",
            [_num_drafted(winner)],
            [winner.tpot_s * 1e3],
            text=[f"<b>{milliseconds(winner.tpot_s)}</b>"],
            textposition="bottom center",
            marker=marker | {"line": {"color": PAPER, "width": 1.5}},
            hoverinfo="skip",
            textfont={"color": SOFT, "size": 12},
        )
    ]
