"""Figures of lines: acceptance by drafted position, and what would have to change for another kind to win."""

from collections.abc import Iterator, Sequence
from math import log10
from typing import Any, Final, Literal

import numpy as np

from decoding.metrics import per_position_acceptance_rate
from decoding.trace import Trace
from planner.report.figure import (
    INK,
    KIND_COLOUR,
    PAPER,
    SOFT,
    STROKES,
    Figure,
    Key,
    axis,
    end_labels,
    layout,
    note,
    scatter,
)
from planner.report.report_data import ScheduleResult
from planner.what_if.sensitivity import Sweep
from planner.wording import Kind, percent

Drafting = Literal["draft alone", "draft with exit features", "tree"]

COLOUR: Final[dict[Drafting, str]] = {
    "draft alone": "var(--rollout)",
    "draft with exit features": "var(--branch)",
    "tree": "var(--tree)",
}


def longest_windows(results: Sequence[ScheduleResult]) -> list[ScheduleResult]:
    """Return for every way of drafting the result with the most drafted tokens."""
    longest: dict[Drafting, ScheduleResult] = {}
    for result in results:
        if result.candidate.schedule.num_speculative_tokens:
            way = _drafting(result)
            longest[way] = max(longest.get(way, result), result, key=lambda one: one.candidate.schedule.num_rows)
    return [longest[way] for way in COLOUR if way in longest]


def acceptance(results: Sequence[ScheduleResult]) -> Figure | None:
    """Plot the share of rounds that accept each drafted position; None without a result."""
    if not results:
        return None
    rates = _rates(results[0], results[0].simulated)
    return Figure(
        name="acceptance",
        alt=f"Share of rounds that accept each drafted position, from {percent(rates[0])} to {percent(rates[-1])}",
        data=[line for result in results for line in _worlds(result)],
        layout=layout(
            height_px=300,
            xaxis=axis("drafted position", dtick=1),
            yaxis=axis("accepted, % of rounds", range=[-4, 104], tickvals=[0, 20, 40, 60, 80, 100]),
        ),
    )


def acceptance_keys(results: Sequence[ScheduleResult]) -> list[Key]:
    """Return the legend, with the tokens that a round commits."""
    keys = []
    for result in results:
        schedule, way = result.candidate.schedule, _drafting(result)
        draft = f"{schedule.traits.title}, {schedule.num_speculative_tokens} deep" if schedule.is_tree else way
        length = result.candidate.prediction.mean_acceptance_length
        label = f"{draft}: {length:.2f} tokens per round with {schedule.num_rows - 1} drafted"
        keys.append(Key(COLOUR[way], label))
    return keys


def _worlds(result: ScheduleResult) -> Iterator[dict[str, Any]]:
    colour = COLOUR[_drafting(result)]
    ring = {"symbol": "circle-open", "size": 13, "line": {"width": 2}}
    line = {"color": colour, "width": 2}
    yield _points("lines+markers", "simulated", _rates(result, result.simulated), line=line, marker=ring)
    yield _points("markers", "measured", _rates(result, result.measured), marker={"size": 6, "color": colour})


def _rates(result: ScheduleResult, traces: Sequence[Trace]) -> list[float]:
    """Return rates by place in a chain, or by level of a tree."""
    return per_position_acceptance_rate(traces)[: result.candidate.schedule.num_speculative_tokens]


def _points(mode: str, world: str, rates: list[float], **settings: Any) -> dict[str, Any]:
    return scatter(
        mode,
        list(range(1, len(rates) + 1)),
        [rate * 100 for rate in rates],
        name=world,
        cliponaxis=False,
        hovertemplate=f"drafted token %{{x}}: %{{y:.1f}} %<extra>{world}</extra>",
        **settings,
    )


def _drafting(result: ScheduleResult) -> Drafting:
    schedule = result.candidate.schedule
    if schedule.is_tree:
        return "tree"
    return "draft with exit features" if schedule.exit_features else "draft alone"


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
    now = _shown(sweep, sweep.now)
    today = {"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1}
    place = log10(sweep.now) if _is_speed(sweep) else now  # notes on a logarithmic axis are placed at the logarithm
    said = note("today", x=place, y=1, yref="paper", yanchor="bottom", font={"size": 12, "color": SOFT})
    return Figure(
        name=f"break-even-{sweep.quantity.replace('_', '-')}",
        alt=f"Best predicted time per token of every kind over {title}",
        data=[*_lines(sweep), *([_rings(sweep, ties)] if ties else [])],
        layout=layout(
            height_px=320,
            annotations=[*end_labels(ends, (0.0, highest), num_lines=13), said],
            shapes=[today | {"line": {"color": SOFT, "width": 1, "dash": "dot"}}],
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
