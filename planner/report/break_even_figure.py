"""What would have to change: the best of every kind while acceptance or the draft's speed moves."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10
from typing import Any, Final

import numpy as np

from planner.kinds import Kind
from planner.report.figure import (
    INK,
    KIND_COLOUR,
    PAPER,
    SOFT,
    STROKES,
    Figure,
    axis,
    end_labels,
    layout,
    note,
    scatter,
)
from planner.what_if.sensitivity import Sweep

PERCENT: Final = 100.0
SPEEDS: Final = {0.125: "⅛×", 0.25: "¼×", 0.5: "½×", 1: "1×", 2: "2×", 4: "4×", 8: "8×"}


def break_even_figure(sweep: Sweep) -> Figure:
    """Return a line for every kind, and a ring where another one becomes the fastest."""
    ties = {kind: at for kind, at in sweep.ties.items() if at is not None}
    highest = 1.05e3 * max(max(times_s) for times_s in sweep.best_tpot_s.values())
    ends = [
        (f"{stroke.sign} {kind}", times_s[-1] * 1e3, KIND_COLOUR[kind])
        for (kind, times_s), stroke in zip(sweep.best_tpot_s.items(), STROKES, strict=False)
    ]
    title = "speed of the draft (logarithmic)" if _is_speed(sweep) else "tokens the draft gets right"
    return Figure(
        name=f"break-even-{sweep.quantity.replace('_', '-')}",
        alt=f"Best predicted time per token of every kind over {title}",
        data=[*_lines(sweep), *([_rings(sweep, ties)] if ties else [])],
        layout=layout(
            height_px=320,
            annotations=[*end_labels(ends, (0.0, highest), num_lines=13), _today(sweep)],
            shapes=[_today_line(sweep)],
            hovermode="x unified",
            margin={"l": 56, "r": 108, "t": 28, "b": 48},
            xaxis=axis(title, **_scale(sweep)),
            yaxis=axis("ms per token", range=[0, highest]),
        ),
    )


def _is_speed(sweep: Sweep) -> bool:
    return sweep.quantity == "draft_speed"


def _shown(sweep: Sweep, value: float) -> float:
    return value if _is_speed(sweep) else value * PERCENT


def _scale(sweep: Sweep) -> dict[str, Any]:
    if not _is_speed(sweep):
        return {"ticksuffix": " %", "range": [0, PERCENT]}
    ends = [log10(sweep.values[0]) - 0.08, log10(sweep.values[-1]) + 0.02]
    return {"type": "log", "tickvals": list(SPEEDS), "ticktext": list(SPEEDS.values()), "range": ends}


def _lines(sweep: Sweep) -> Iterator[dict[str, Any]]:
    for (kind, times_s), stroke in zip(sweep.best_tpot_s.items(), STROKES, strict=False):
        yield scatter(
            "lines+markers",
            [_shown(sweep, value) for value in sweep.values],
            [time_s * 1e3 for time_s in times_s],
            name=kind,
            line={"color": KIND_COLOUR[kind], "width": 2, "dash": stroke.dash},
            marker={"size": 7, "symbol": stroke.symbol},
            hovertemplate=f"{kind}: %{{y:.1f}} ms per token<extra></extra>",
        )


def _today(sweep: Sweep) -> dict[str, Any]:
    """Annotations on a logarithmic axis are placed at the logarithm, lines are not."""
    place = log10(sweep.now) if _is_speed(sweep) else sweep.now * PERCENT
    return note("today", x=place, y=1, yref="paper", yanchor="bottom", font={"size": 12, "color": SOFT})


def _today_line(sweep: Sweep) -> dict[str, Any]:
    place = _shown(sweep, sweep.now)
    line = {"color": SOFT, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": line}


def _rings(sweep: Sweep, ties: dict[Kind, float]) -> dict[str, Any]:
    return scatter(
        "markers+text",
        [_shown(sweep, at) for at in ties.values()],
        [float(np.interp(at, sweep.values, sweep.best_tpot_s[kind])) * 1e3 for kind, at in ties.items()],
        text=[f"{at:.2g}×" if _is_speed(sweep) else f"{at * PERCENT:.0f} %" for at in ties.values()],
        # Right of a ring near the right end there is no room; the curves come down from the left.
        textposition=["bottom left" if at > sweep.values[-3] else "top right" for at in ties.values()],
        textfont={"color": INK, "size": 12},
        marker={"size": 10, "color": PAPER, "line": {"color": INK, "width": 2}},
        hovertext=[f"{kind} becomes the fastest" for kind in ties],
        hoverinfo="text",
    )
