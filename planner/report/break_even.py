"""What would have to change: the best of every kind while acceptance or the draft's speed moves."""

from __future__ import annotations

from math import log10
from typing import Any

from planner.kinds import KINDS, Kind
from planner.report.figure import INK, KIND_COLOUR, PAPER, SOFT, Figure, axis, end_labels, layout, note
from planner.what_if.sensitivity import BreakEven, Sensitivity, Sweep

NAME: dict[Kind, str] = {kind: kind for kind in KINDS}


def break_even_figures(sensitivity: Sensitivity) -> list[Figure]:
    """A figure for every sweep."""
    return [
        _figure(sweep, [one for one in sensitivity.break_evens if one.quantity == sweep.quantity])
        for sweep in sensitivity.sweeps
    ]


def _figure(sweep: Sweep, ties: list[BreakEven]) -> Figure:
    is_speed = sweep.quantity == "draft_speed"
    scale = 1.0 if is_speed else 100.0
    values = [value * scale for value in sweep.values]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": NAME[kind],
            "x": values,
            "y": [time_s * 1e3 for time_s in times_s],
            "line": {"color": KIND_COLOUR[kind], "width": 2.5},
            "hovertemplate": f"{NAME[kind]}: %{{y:.1f}} ms per token<extra></extra>",
        }
        for kind, times_s in sweep.best_tpot_s.items()
    ]
    found = [one for one in ties if one.at is not None]
    if found:
        data.append(_ties(sweep, found, scale))
    highest = 1.05e3 * max(max(times_s) for times_s in sweep.best_tpot_s.values())
    ends = [(NAME[kind], times_s[-1] * 1e3, KIND_COLOUR[kind]) for kind, times_s in sweep.best_tpot_s.items()]
    labels = end_labels(ends, (0.0, highest), num_lines=13)
    settings: dict[str, Any] = {"ticksuffix": " %", "range": [0, 100]}
    if is_speed:
        settings = {"type": "log", "tickvals": [0.125, 0.25, 0.5, 1, 2, 4, 8]}
        settings["ticktext"] = ["⅛×", "¼×", "½×", "1×", "2×", "4×", "8×"]
        settings["range"] = [log10(values[0]) - 0.08, log10(values[-1]) + 0.02]
    title = "speed of the draft, as measured = 1×" if is_speed else "tokens the draft gets right"
    today = {"type": "line", "xref": "x", "yref": "paper", "x0": sweep.now * scale, "x1": sweep.now * scale}
    today |= {"y0": 0, "y1": 1, "line": {"color": SOFT, "width": 1, "dash": "dot"}}
    return Figure(
        name=f"break-even-{sweep.quantity.replace('_', '-')}",
        alt=f"Best predicted time per token of every kind over {title}",
        data=data,
        layout=layout(
            height_px=320,
            annotations=[*labels, _today(sweep.now * scale, is_log=is_speed)],
            shapes=[today],
            hovermode="x unified",
            margin={"l": 56, "r": 96, "t": 28, "b": 48},
            xaxis=axis(title, **settings),
            yaxis=axis("ms per token", range=[0, highest]),
        ),
    )


def _today(value: float, *, is_log: bool) -> dict[str, Any]:
    """Annotations on a logarithmic axis stand at the logarithm, lines do not."""
    place = 0.0 if is_log else value
    return note("today", x=place, y=1, yref="paper", yanchor="bottom", font={"size": 12, "color": SOFT})


def _ties(sweep: Sweep, found: list[BreakEven], scale: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [one.at * scale for one in found if one.at is not None],
        "y": [_height(sweep, one) * 1e3 for one in found],
        "text": [f"{one.at * 100:.0f} %" if scale > 1 else f"{one.at:.2g}×" for one in found if one.at is not None],
        "textposition": "top right",
        "textfont": {"color": INK, "size": 12},
        "marker": {"size": 10, "color": PAPER, "line": {"color": INK, "width": 2}},
        "hovertext": [f"{NAME[one.challenger]} takes the lead" for one in found],
        "hoverinfo": "text",
    }


def _height(sweep: Sweep, tie: BreakEven) -> float:
    """The challenger's time at the tie, between the neighbouring values of the sweep."""
    assert tie.at is not None
    times = sweep.best_tpot_s[tie.challenger]
    above = next(index for index, value in enumerate(sweep.values) if value >= tie.at)
    low, high = sweep.values[above - 1], sweep.values[above]
    share = (tie.at - low) / (high - low)
    return times[above - 1] * (1 - share) + times[above] * share
