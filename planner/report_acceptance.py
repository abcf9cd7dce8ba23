"""Acceptance by drafted position, simulated and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from decoding.metrics import per_position_acceptance_rate
from decoding.trace import Trace
from planner.report_data import ScheduleResult
from planner.report_figure import Figure, Key, axis, layout
from planner.wording import percent

COLOUR = {False: "var(--rollout)", True: "var(--branch)"}


def longest_windows(results: Sequence[ScheduleResult]) -> list[ScheduleResult]:
    """Of the results without and with exit features, the one with the longest window; measured ones go first."""
    longest: dict[bool, ScheduleResult] = {}
    for result in results:
        if result.candidate.schedule.num_speculative_tokens:
            features = result.candidate.schedule.exit_features
            longest[features] = max(longest.get(features, result), result, key=_length)
    return [longest[features] for features in sorted(longest)]


def acceptance(results: Sequence[ScheduleResult]) -> Figure | None:
    """Share of rounds that accept each drafted position; None without a result."""
    if not results:
        return None
    rates = per_position_acceptance_rate(results[0].simulated)
    return Figure(
        name="acceptance",
        alt=f"Share of rounds that accept each drafted position, from {percent(rates[0])} to {percent(rates[-1])}",
        data=[line for result in results for line in _lines(result)],
        layout=layout(
            height_px=300,
            xaxis=axis("drafted position", dtick=1),
            yaxis=axis("accepted, % of rounds", range=[-4, 104], tickvals=[0, 20, 40, 60, 80, 100]),
        ),
    )


def acceptance_keys(results: Sequence[ScheduleResult]) -> list[Key]:
    """The legend, with the tokens that a round commits."""
    keys = []
    for result in results:
        schedule = result.candidate.schedule
        draft = "draft with exit features" if schedule.exit_features else "draft alone"
        length = result.candidate.prediction.mean_acceptance_length
        label = f"{draft}: {length:.2f} tokens per round with {schedule.num_speculative_tokens} drafted"
        keys.append(Key(COLOUR[schedule.exit_features], label))
    return keys


def _lines(result: ScheduleResult) -> Iterator[dict[str, Any]]:
    colour = COLOUR[result.candidate.schedule.exit_features]
    ring = {"symbol": "circle-open", "size": 13, "line": {"width": 2}}
    line = {"color": colour, "width": 2}
    yield _points("simulated", result.simulated) | {"mode": "lines+markers", "line": line, "marker": ring}
    real = [trace for repeat in result.measured for trace in repeat]
    if real:
        yield _points("measured", real) | {"mode": "markers", "marker": {"size": 6, "color": colour}}


def _points(world: str, traces: Sequence[Trace]) -> dict[str, Any]:
    rates = per_position_acceptance_rate(traces)
    return {
        "type": "scatter",
        "name": world,
        "x": list(range(1, len(rates) + 1)),
        "y": [rate * 100 for rate in rates],
        "cliponaxis": False,
        "hovertemplate": f"drafted token %{{x}}: %{{y:.1f}} %<extra>{world}</extra>",
    }


def _length(result: ScheduleResult) -> tuple[bool, int]:
    return bool(result.measured), result.candidate.schedule.num_speculative_tokens
