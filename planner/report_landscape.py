"""The search at a glance: what each kind can reach with every window, and the exit layers against each other."""

from __future__ import annotations

from typing import Any

from planner.report_figure import KIND_COLOUR, PAPER, SOFT, Figure, axis, layout, note, short_kind, spread_apart
from planner.search import Candidate, SearchResult
from planner.wording import milliseconds

HIGHEST_SHOWN = 1.6
"""Times above this multiple of plain decoding are left out of view."""


def landscape(result: SearchResult) -> Figure | None:
    """Best time per token over the window, a line per kind; None if nothing drafts."""
    lines: dict[str, dict[int, Candidate]] = {}
    for candidate in result.candidates:
        schedule = candidate.schedule
        if schedule.num_speculative_tokens:
            kind = short_kind(schedule, candidate.placement)
            lines.setdefault(kind, {}).setdefault(schedule.num_speculative_tokens, candidate)
    if not lines:
        return None
    plain = result.best(method="autoregressive")
    lowest = result.winner.tpot_s * 1e3
    slowest = max(candidate.tpot_s for line in lines.values() for candidate in line.values())
    if plain is not None:
        slowest = max(min(slowest, HIGHEST_SHOWN * plain.tpot_s), plain.tpot_s)
    highest = 1e3 * slowest
    last_window = max(window for line in lines.values() for window in line)
    data = [_line(kind, line) for kind, line in lines.items()]
    ends = {kind: line[max(line)] for kind, line in lines.items()}
    wanted = {kind: min(end.tpot_s * 1e3, highest) for kind, end in ends.items()}
    colours = {kind: KIND_COLOUR[end.schedule.method] for kind, end in ends.items()}
    shapes: list[dict[str, Any]] = []
    if plain is not None:
        wanted["plain decoding"], colours["plain decoding"] = plain.tpot_s * 1e3, KIND_COLOUR["autoregressive"]
        dashed = {"color": KIND_COLOUR["autoregressive"], "width": 2, "dash": "dash"}
        shapes.append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": plain.tpot_s * 1e3, "y1": plain.tpot_s * 1e3}
            | {"line": dashed}
        )
    places = spread_apart(list(wanted.values()), (highest - lowest) / 15)
    labels = [
        note(kind, x=1, y=place, xref="paper", xanchor="left", xshift=8, font={"size": 12, "color": colours[kind]})
        for kind, place in zip(wanted, places, strict=True)
    ]
    winner = result.winner
    if winner.schedule.num_speculative_tokens:
        data.append(_star(winner))
    return Figure(
        name="landscape",
        alt="Best predicted time per token of every kind of decoding over the number of drafted tokens",
        data=data,
        layout=layout(
            height_px=360,
            annotations=labels,
            shapes=shapes,
            margin={"l": 56, "r": 132, "t": 16, "b": 48},
            xaxis=axis("drafted tokens per round", dtick=1, range=[0.7, last_window + 0.15]),
            yaxis=axis("ms per token", range=[lowest - 0.12 * (highest - lowest), highest + 0.06 * (highest - lowest)]),
        ),
    )


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
    return Figure(
        name="exit-layers",
        alt="Best predicted time per token of mirror by exit layer and number of drafted tokens",
        data=[
            {
                "type": "heatmap",
                "x": [str(window) for window in windows],
                "y": [f"layer {layer}" for layer in layers],
                "z": [[cell.tpot_s * 1e3 if cell else None for cell in row] for row in cells],
                "texttemplate": "%{z:.1f}",
                "colorscale": "Cividis",
                "reversescale": True,
                "showscale": False,
                "xgap": 2,
                "ygap": 2,
                "hovertemplate": "exit after %{y}, %{x} drafted: %{z:.2f} ms per token<extra></extra>",
            }
        ],
        layout=layout(
            height_px=80 + 44 * len(layers),
            xaxis=axis("drafted tokens per round", type="category", showgrid=False),
            yaxis=axis("", type="category", showgrid=False),
            margin={"l": 64, "r": 16, "t": 8, "b": 48},
        ),
    )


def _line(kind: str, line: dict[int, Candidate]) -> dict[str, Any]:
    best = [line[window] for window in sorted(line)]
    first = best[0].schedule
    dashes = {"exit": "solid", "draft": "dot", "hybrid": "dash", "split": "dot", "pooled": "solid"}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": kind,
        "x": [candidate.schedule.num_speculative_tokens for candidate in best],
        "y": [candidate.tpot_s * 1e3 for candidate in best],
        "line": {"color": KIND_COLOUR[first.method], "width": 2, "dash": dashes[kind.rsplit(maxsplit=1)[-1]]},
        "marker": {"size": 6},
        "hovertemplate": f"{kind}, %{{x}} drafted: %{{y:.2f}} ms per token<extra></extra>",
    }


def _star(winner: Candidate) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [winner.schedule.num_speculative_tokens],
        "y": [winner.tpot_s * 1e3],
        "text": [f"<b>{milliseconds(winner.tpot_s)}</b>"],
        "textposition": "bottom center",
        "marker": {
            "symbol": "star",
            "size": 16,
            "color": KIND_COLOUR[winner.schedule.method],
            "line": {"color": PAPER, "width": 1.5},
        },
        "hoverinfo": "skip",
        "textfont": {"color": SOFT, "size": 12},
    }
