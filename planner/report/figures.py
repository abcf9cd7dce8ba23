"""What the page shows as pictures: lanes over time, the search, what would turn it, and how much is accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from markupsafe import Markup

from decoding.metrics import per_position_acceptance_rate
from decoding.schedule import Schedule
from planner.kinds import Kind, kind_of
from planner.pictures.rounds_picture import rounds_picture
from planner.pictures.xy_plot import Series, xy_plot
from planner.report.report_data import ReportData, ScheduleResult
from planner.search.search import Candidate, SearchResult
from planner.what_if.sensitivity import Sweep
from planner.wording import capital, milliseconds

NUM_ROUNDS: Final = 10
"""Rounds of the fastest schedule's simulated trace that set the stretch of time shown."""
_SWEPT: Final = {
    "acceptance": ("If the draft were right more or less often", "tokens that the draft gets right, %", 100.0),
    "draft_speed": ("If the draft were faster or slower", "speed of the draft, times today's", 1.0),
}
"""Title of a sweep's picture, title of its axis, and what its values are multiplied by."""


class Heat(NamedTuple):
    """A time per token, and where it lies between the fastest, 100, and the slowest, 0."""

    time_s: float
    percent: float


def timelines(data: ReportData) -> Iterator[tuple[str, list[tuple[str, Markup]]]]:
    """Yield the lanes of the first prompt in each world, of the fastest of every kind that drafts, and of two at least.

    All end together: where the fastest of them is through with its first rounds.
    """
    kinds: tuple[Kind, ...] = ("mirror", "tree", "synchronous", "lookup", "plain")
    best = [result for result in map(data.fastest, kinds) if result is not None]
    shown = [one for place, one in enumerate(best) if place < 2 or one.candidate.schedule.num_rows > 1]
    end_s = min(one.simulated[0].rounds[:NUM_ROUNDS][-1].end_s for one in shown)
    for one in shown:
        worlds = [("Simulated", one.simulated), *[("Measured", one.measured)] * bool(one.measured)]
        schedule = one.candidate.schedule
        yield (
            capital(one.name),
            [(world, rounds_picture(traces[0], schedule, end_s=end_s)) for world, traces in worlds],
        )


def landscape(result: SearchResult) -> Markup | None:
    """Return the best time per token over the drafted tokens, a line per kind; None if nothing drafts."""
    lines: dict[str, dict[int, Candidate]] = {}
    for one in result.candidates:
        if num_drafted := one.schedule.num_rows - 1:
            lines.setdefault(short_kind(one.schedule, one.placement), {}).setdefault(num_drafted, one)
    if not lines:
        return None
    plain, winner = result.best(kind="plain"), result.winner
    series = []
    for kind, line in lines.items():
        best = [line[count] for count in sorted(line)]
        points = [(one.schedule.num_rows - 1, 1e3 * one.tpot_s) for one in best]
        labels = [f"\u2605 {milliseconds(one.tpot_s)}" if one is winner else "" for one in best]
        series.append(Series(kind, points, labels=labels))
    return xy_plot(
        series,
        x_title="drafted tokens per round",
        y_title="ms per token",
        alt="Best predicted time per token of every kind of decoding over the number of drafted tokens",
        x_ticks=sorted({count for line in lines.values() for count in line if count < 9 or count % 8 == 0}),
        level=None if plain is None else 1e3 * plain.tpot_s,
    )


def short_kind(schedule: Schedule, placement: str) -> str:
    """Return a kind of schedule as a label of a line: `mirror exit`, `synchronous pooled`, `EAGLE-3`."""
    if schedule.traits.overlaps:
        return f"mirror {schedule.root_source}"
    if schedule.is_tree:
        return schedule.traits.title.removeprefix("speculative ")
    return f"{kind_of(schedule)} {placement}"


def exit_layers(result: SearchResult) -> dict[int, dict[int, Heat | None]]:
    """Return the best of every exit layer (outer) and window (inner); nothing with fewer than two exits."""
    best: dict[tuple[int, int], float] = {}
    for one in result.candidates:
        if one.schedule.exit_layer is not None:
            best.setdefault((one.schedule.exit_layer, one.schedule.num_speculative_tokens), one.tpot_s)
    layers, windows = sorted({layer for layer, _ in best}), sorted({window for _, window in best})
    if len(layers) < 2:
        return {}
    slowest, fastest = max(best.values()), min(best.values())
    span_s = (slowest - fastest) or 1.0
    heat = {place: Heat(time_s, 100 * (slowest - time_s) / span_s) for place, time_s in best.items()}
    return {layer: {window: heat.get((layer, window)) for window in windows} for layer in layers}


def break_even(sweep: Sweep) -> tuple[str, Markup]:
    """Return a title, and a line for every kind, with a mark for today and where another one becomes the fastest."""
    title, x_title, unit = _SWEPT[sweep.quantity]
    is_speed = sweep.quantity == "draft_speed"
    lines = {
        kind: [(unit * value, 1e3 * time_s) for value, time_s in zip(sweep.values, times_s, strict=True)]
        for kind, times_s in sweep.best_tpot_s.items()
    }
    today = min(line[sweep.values.index(sweep.now)] for line in lines.values())
    ties = [
        (unit * at, 1e3 * float(np.interp(at, sweep.values, sweep.best_tpot_s[kind])))
        for kind, at in sweep.ties.items()
    ]
    series = [Series(kind, line) for kind, line in lines.items()]
    series.append(Series("today", [today], joined=False))
    if ties:
        labels = [f"{at:.2g}\u00d7" if is_speed else f"{at:.0f} %" for at, _ in ties]
        series.append(Series("another becomes the fastest", ties, joined=False, labels=labels))
    return title, xy_plot(
        series,
        x_title=x_title,
        y_title="ms per token",
        alt=f"Best predicted time per token of every kind over {x_title}",
        x_ticks=(0.125, 0.25, 0.5, 1, 2, 4, 8) if is_speed else (),
        log_x=is_speed,
    )


def acceptance(results: Sequence[ScheduleResult]) -> Markup | None:
    """Return the share of rounds that accept each drafted position, of the longest window of every way to draft.

    Of a tree that is a level. Measured ones go first; None where nothing drafts.
    """
    longest: dict[str, ScheduleResult] = {}
    for one in (one for one in results if one.candidate.schedule.num_speculative_tokens):
        way = _way(one.candidate.schedule)
        longest[way] = max(
            longest.get(way, one), one, key=lambda each: (bool(each.measured), each.candidate.schedule.num_rows)
        )
    series = []
    for way, one in longest.items():
        schedule, length = one.candidate.schedule, one.candidate.prediction.mean_acceptance_length
        drafts = f"{schedule.traits.title}, {schedule.num_speculative_tokens} deep" if schedule.is_tree else way
        told = f"{drafts}: {length:.2f} tokens per round with {schedule.num_rows - 1} drafted"
        for name, traces in ((told, one.simulated), (f"{drafts}, measured", one.measured)):
            rates = per_position_acceptance_rate(traces)[: schedule.num_speculative_tokens] if traces else []
            if rates:
                points = [(place, 100 * rate) for place, rate in enumerate(rates, 1)]
                series.append(Series(name, points, joined=traces is one.simulated))
    if not series:
        return None
    return xy_plot(
        series,
        x_title="drafted position",
        y_title="accepted, % of rounds",
        alt="Share of rounds that accept each drafted position",
        x_ticks=range(1, 1 + max(len(one.points) for one in series)),
    )


def _way(schedule: Schedule) -> str:
    if schedule.is_tree:
        return "tree"
    return "draft with exit features" if schedule.exit_features else "draft alone"
