"""Pictures of lines: acceptance by drafted position, and what would have to change for another kind to win."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
from markupsafe import Markup

from decoding.metrics import per_position_acceptance_rate
from planner.pictures.xy_plot import Series, xy_plot
from planner.report.report_data import ScheduleResult
from planner.what_if.sensitivity import Sweep
from planner.wording import KINDS, Kind, factor, percent

Drafting = Literal["draft alone", "draft with exit features", "tree"]

COLOUR: Final[dict[Drafting, str]] = {
    "draft alone": "--rollout",
    "draft with exit features": "--branch",
    "tree": "--tree",
}

_KIND_COLOUR: Final[dict[Kind, str]] = {
    "plain": "--soft",
    "lookup": "--third",
    "synchronous": "--first",
    "tree": "--fourth",
    "mirror": "--second",
}

_ROUND_SPEEDS: Final = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def longest_windows(results: Sequence[ScheduleResult]) -> list[ScheduleResult]:
    """Return for every way of drafting the result with the most drafted tokens."""
    longest: dict[Drafting, ScheduleResult] = {}
    for result in results:
        if result.candidate.schedule.num_speculative_tokens:
            way = _drafting(result)
            longest[way] = max(longest.get(way, result), result, key=lambda one: one.candidate.schedule.num_rows)
    return [longest[way] for way in COLOUR if way in longest]


def acceptance(results: Sequence[ScheduleResult]) -> Markup | None:
    """Plot the share of rounds that accept each drafted position, in both worlds; None without a result."""
    if not results:
        return None
    series = [line for result in results for line in _worlds(result)]
    return xy_plot(
        series,
        x_title="drafted position",
        y_title="accepted, % of rounds",
        alt="Share of rounds that accept each drafted position",
        x_ticks=range(1, max(len(one.points) for one in series) + 1),
    )


def _worlds(result: ScheduleResult) -> Iterator[Series]:
    schedule, way = result.candidate.schedule, _drafting(result)
    draft = f"{schedule.traits.title}, {schedule.num_speculative_tokens} deep" if schedule.is_tree else way
    length = result.candidate.prediction.mean_acceptance_length
    told = f"{draft}: {length:.2f} tokens per round with {schedule.num_rows - 1} drafted"
    for name, traces in ((told, result.simulated), (f"{draft}, measured", result.measured)):
        rates = per_position_acceptance_rate(traces)[: schedule.num_speculative_tokens]
        points = [(place, 100 * rate) for place, rate in enumerate(rates, 1)]
        yield Series(name, points, joined=name == told, colour=COLOUR[way])


def _drafting(result: ScheduleResult) -> Drafting:
    schedule = result.candidate.schedule
    if schedule.is_tree:
        return "tree"
    return "draft with exit features" if schedule.exit_features else "draft alone"


def sweep_picture(sweep: Sweep, whose: str) -> Markup:
    """Plot the best time of every kind as a quantity moves; points are today's and where another kind is the fastest.

    `whose` are the tokens that an acceptance is of, see `planner.what_if.mixed_record`.
    """
    is_speed, lines = sweep.quantity == "draft_speed", sweep.best_tpot_s
    shown = np.array(sweep.values) * (1 if is_speed else 100)
    series = [
        Series(
            KINDS[kind],
            [(at, 1e3 * time_s) for at, time_s in zip(shown.tolist(), times_s, strict=True)],
            colour=_KIND_COLOUR[kind],
        )
        for kind, times_s in lines.items()
    ]
    now = sweep.values.index(sweep.now)
    marks = {"today": (float(shown[now]), 1e3 * min(times_s[now] for times_s in lines.values()))}
    for kind, at in sweep.ties.items():
        x, tpot_s = (float(np.interp(at, sweep.values, of)) for of in (shown, lines[kind]))
        marks[factor(at) if is_speed else percent(at)] = x, 1e3 * tpot_s
    name = "today, and where another is fastest"
    series.append(Series(name, list(marks.values()), joined=False, labels=[*marks], colour="--ink"))
    return xy_plot(
        series,
        x_title="speed of the draft, times today's (logarithmic)" if is_speed else f"{whose} accepted, %",
        y_title="ms per token",
        alt="Time per token of every kind of decoding by " + ("speed of the draft" if is_speed else "acceptance"),
        x_ticks=_ROUND_SPEEDS if is_speed else (),
        is_logarithmic=is_speed,
    )
