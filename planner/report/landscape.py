"""The search at a glance: what each kind can reach with every window, and the exit layers against each other."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any

from decoding.schedule import MAX_WINDOW
from planner.kinds import kind_of
from planner.report.figure import KIND_COLOUR, PAPER, SOFT, Figure, axis, end_labels, layout, scatter, short_kind
from planner.search.search import Candidate, SearchResult
from planner.wording import milliseconds

DASH = {"exit": "solid", "draft": "dot", "hybrid": "dash", "split": "dot", "pooled": "solid"} | {
    "EAGLE-3": "solid",
    "EAGLE-2": "dash",
    "Hydra": "dashdot",
    "Medusa": "dot",
    "streaming": "longdash",
}
"""By the last word of a line's name."""
COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
FINE = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.4, 2.6, 2.8, 3, 3.3, 3.6, 4, 4.4, 4.8, 5.2, 5.6, 6, 6.5, 7, 8, 9)


Line = dict[int, Candidate]
"""The best candidate by the number of drafted tokens."""


def landscape(result: SearchResult) -> Figure | None:
    """Best time per token over the drafted tokens, a line per kind; None if nothing drafts. Ratios are distances."""
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
    names = [(kind, log10(end.tpot_s * 1e3), KIND_COLOUR[kind_of(end.schedule)]) for kind, end in ends.items()]
    return Figure(
        name="landscape",
        alt="Best predicted time per token of every kind of decoding over the number of drafted tokens",
        data=[_line(kind, line) for kind, line in lines.items()] + _star(result.winner),
        layout=layout(
            height_px=22 * num_text_lines,
            annotations=end_labels(names, (low, high), num_lines=num_text_lines),
            shapes=[] if plain is None else [_dashes(plain.tpot_s * 1e3)],
            margin={"l": 56, "r": 132, "t": 24, "b": 48},
            xaxis=axis("drafted tokens per round", **_window_scale(sorted(set().union(*lines.values())))),
            yaxis=axis("ms per token, logarithmic", type="log", range=[low, high], **_ticks(fastest, slowest)),
        ),
        min_width_px=560,
    )


def _best_lines(result: SearchResult) -> dict[str, Line]:
    """By kind; candidates come fastest first."""
    lines: dict[str, Line] = {}
    for candidate in result.candidates:
        num_drafted = _num_drafted(candidate)
        if num_drafted:
            kind = short_kind(candidate.schedule, candidate.placement)
            lines.setdefault(kind, {}).setdefault(num_drafted, candidate)
    return lines


def _num_drafted(candidate: Candidate) -> int:
    return candidate.schedule.num_rows - 1


def _window_scale(windows: list[int]) -> dict[str, Any]:
    """Even steps for chains; ratios where trees are much wider."""
    first, last = windows[0], windows[-1]
    if last <= MAX_WINDOW:
        return {"dtick": 1, "range": [first - 0.3, last + 0.15]}
    shown = [window for window in windows if window <= 4 or window % 2 == 0]
    scale = {"type": "log", "tickvals": shown, "ticktext": [str(window) for window in shown]}
    return scale | {"range": [log10(first) - 0.04, log10(last) + 0.02]}


def exit_layers(result: SearchResult) -> Figure | None:
    """Best time per token by exit layer and window; None with fewer than two exits."""
    best: dict[tuple[int, int], Candidate] = {}
    for candidate in result.candidates:
        schedule = candidate.schedule
        if schedule.exit_layer is not None:
            best.setdefault((schedule.exit_layer, schedule.num_speculative_tokens), candidate)
    layers = sorted({layer for layer, _ in best})
    windows = sorted({window for _, window in best})
    if len(layers) < 2:
        return None
    cells = [[best.get((layer, window)) for window in windows] for layer in layers]
    heatmap = {
        "type": "heatmap",
        "x": [str(window) for window in windows],
        "y": [f"layer {layer}" for layer in layers],
        "z": [[cell.tpot_s * 1e3 if cell else None for cell in row] for row in cells],
        "texttemplate": "%{z:.1f}",
        "colorscale": "Cividis",
        "reversescale": True,  # the shorter the time, the lighter the cell
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "exit after %{y}, %{x} drafted: %{z:.2f} ms per token<extra></extra>",
    }
    return Figure(
        name="exit-layers",
        alt="Best predicted time per token of mirror by exit layer and number of drafted tokens",
        data=[heatmap],
        layout=layout(
            height_px=80 + 44 * len(layers),
            xaxis=axis("drafted tokens per round", type="category", showgrid=False),
            yaxis=axis("", type="category", showgrid=False),
            margin={"l": 64, "r": 16, "t": 8, "b": 48},
        ),
    )


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Round numbers between 10**low and 10**high."""
    decades = range(floor(low) - 1, ceil(high) + 1)
    steps = FINE if high - low < 0.4 else COARSE
    values = [step * 10.0**decade for decade in decades for step in steps]
    shown = [value for value in values if low - 0.03 <= log10(value) <= high + 0.03]
    return {"tickvals": shown, "ticktext": [f"{value:g}" for value in shown]}


def _dashes(height: float) -> dict[str, Any]:
    line = {"color": KIND_COLOUR["plain"], "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line}


def _line(kind: str, line: Line) -> dict[str, Any]:
    best = [line[window] for window in sorted(line)]
    colour, dash = KIND_COLOUR[kind_of(best[0].schedule)], DASH[kind.rsplit(maxsplit=1)[-1]]
    return scatter(
        "lines+markers",
        [_num_drafted(candidate) for candidate in best],
        [candidate.tpot_s * 1e3 for candidate in best],
        name=kind,
        line={"color": colour, "width": 2, "dash": dash},
        marker={"size": 6},
        hovertemplate=f"{kind}, %{{x}} drafted: %{{y:.2f}} ms per token<extra></extra>",
    )


def _star(winner: Candidate) -> list[dict[str, Any]]:
    """The winner's mark, if it drafts."""
    if not _num_drafted(winner):
        return []
    marker = {"symbol": "star", "size": 16, "color": KIND_COLOUR[kind_of(winner.schedule)]}
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
