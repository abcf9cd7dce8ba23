"""Acceptance by drafted position (of a tree by level), simulated and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from decoding.metrics import per_position_acceptance_rate
from decoding.trace import Trace
from planner.report.figure import Figure, Key, axis, layout, scatter
from planner.report.report_data import ScheduleResult
from planner.wording import percent

Drafting = Literal["draft alone", "draft with exit features", "tree"]

COLOUR: Final[dict[Drafting, str]] = {
    "draft alone": "var(--rollout)",
    "draft with exit features": "var(--branch)",
    "tree": "var(--tree)",
}


def longest_windows(results: Sequence[ScheduleResult]) -> list[ScheduleResult]:
    """For every way of drafting the result with the most drafted tokens; measured ones go first."""

    def preference(result: ScheduleResult) -> tuple[bool, int]:
        return bool(result.measured), result.candidate.schedule.num_rows

    longest: dict[Drafting, ScheduleResult] = {}
    for result in results:
        if result.candidate.schedule.num_speculative_tokens:
            way = _drafting(result)
            longest[way] = max(longest.get(way, result), result, key=preference)
    return [longest[way] for way in COLOUR if way in longest]


def acceptance(results: Sequence[ScheduleResult]) -> Figure | None:
    """Share of rounds that accept each drafted position; None without a result."""
    if not results:
        return None
    rates = _rates(results[0], results[0].simulated)
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
    """Return the legend, with the tokens that a round commits."""
    keys = []
    for result in results:
        schedule, way = result.candidate.schedule, _drafting(result)
        draft = f"{schedule.traits.title}, {schedule.num_speculative_tokens} deep" if schedule.is_tree else way
        length = result.candidate.prediction.mean_acceptance_length
        label = f"{draft}: {length:.2f} tokens per round with {schedule.num_rows - 1} drafted"
        keys.append(Key(COLOUR[way], label))
    return keys


def _lines(result: ScheduleResult) -> Iterator[dict[str, Any]]:
    colour = COLOUR[_drafting(result)]
    ring = {"symbol": "circle-open", "size": 13, "line": {"width": 2}}
    line = {"color": colour, "width": 2}
    yield _points("lines+markers", "simulated", _rates(result, result.simulated), line=line, marker=ring)
    if result.measured:
        yield _points("markers", "measured", _rates(result, result.measured), marker={"size": 6, "color": colour})


def _rates(result: ScheduleResult, traces: Sequence[Trace]) -> list[float]:
    """By place in a chain, or by level of a tree."""
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
