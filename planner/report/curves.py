"""Line plots of a report: best times of the search, acceptance by position, and sensitivity sweeps."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
from markupsafe import Markup

from decoding.metrics import per_position_acceptance_rate
from decoding.schedule import MAX_WINDOW, Schedule
from planner.pictures.xy_plot import Series, xy_plot
from planner.report.report_data import ScheduleResult
from planner.search.search import Candidate, SearchResult
from planner.what_if.sensitivity import Sweep
from planner.wording import KINDS, Kind, factor, kind_of, milliseconds, percent

_Drafting = Literal["draft alone", "draft with exit features", "tree", "prompt lookup"]

COLOUR: Final[dict[_Drafting, str]] = {
    "draft alone": "--rollout",
    "draft with exit features": "--branch",
    "tree": "--fourth",
    "prompt lookup": "--third",
}

KIND_COLOUR: Final[dict[Kind, str]] = {
    "plain": "--soft",
    "lookup": "--third",
    "synchronous": "--first",
    "tree": "--fourth",
    "mirror": "--second",
}

_ROUND_SPEEDS: Final = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def landscape(result: SearchResult, chosen: Candidate) -> Markup | None:
    """Plot the best time per token over drafted tokens, one line for each kind of decoding; None if nothing drafts."""
    lines: dict[tuple[str, Kind], dict[int, float]] = {}
    for one in result.candidates:  # the fastest first
        if one.schedule.num_rows > 1:
            line = lines.setdefault((_short_kind(one.schedule, one.placement), kind_of(one.schedule)), {})
            line.setdefault(one.schedule.num_rows - 1, 1e3 * one.tpot_s)
    if not lines:
        return None
    windows = sorted(set().union(*lines.values()))
    series = [Series(name, sorted(line.items()), colour=KIND_COLOUR[kind]) for (name, kind), line in lines.items()]
    plain = result.best(kind="plain")
    if plain is not None:
        ends = [(float(window), 1e3 * plain.tpot_s) for window in (windows[0], windows[-1])]
        series.append(Series(KINDS["plain"], ends, colour=KIND_COLOUR["plain"]))
    if chosen.schedule.num_rows > 1:
        at = chosen.schedule.num_rows - 1, 1e3 * chosen.tpot_s
        series.append(Series(f"chosen: {milliseconds(chosen.tpot_s)}", [at], joined=False, colour="--ink"))
    is_wide = windows[-1] > MAX_WINDOW  # trees have many more tokens than chains
    return xy_plot(
        series,
        x_title="drafted tokens per round" + is_wide * " (logarithmic)",
        y_title="ms per token",
        alt="Best predicted time per token of every kind of decoding over the number of drafted tokens",
        x_ticks=[window for window in windows if not is_wide or window <= 4 or window % 2 == 0],
        is_logarithmic=is_wide,
    )


def _short_kind(schedule: Schedule, placement: str) -> str:
    """Return the name of a schedule's line: `mirror exit`, `synchronous pooled`, `EAGLE-3`."""
    if schedule.traits.overlaps:
        return f"mirror {schedule.root_source}"
    if schedule.is_tree:
        return schedule.traits.title.removeprefix("speculative ")
    return f"{kind_of(schedule)} {placement}"


def longest_windows(results: Sequence[ScheduleResult]) -> list[ScheduleResult]:
    """Return the result with the most drafted tokens for every kind of drafting."""
    longest: dict[_Drafting, ScheduleResult] = {}
    for result in results:
        if result.candidate.schedule.num_speculative_tokens:
            way = _drafting(result)
            longest[way] = max(longest.get(way, result), result, key=lambda one: one.candidate.schedule.num_rows)
    return [longest[way] for way in COLOUR if way in longest]


def acceptance(results: Sequence[ScheduleResult]) -> Markup | None:
    """Plot the share of rounds that accept each drafted position, simulated and measured; None without a result."""
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
    simulated = f"{draft}: {length:.2f} tokens per round with {schedule.num_rows - 1} drafted"
    for name, traces in ((simulated, result.simulated), (f"{draft}, measured", result.measured)):
        rates = per_position_acceptance_rate(traces)[: schedule.num_speculative_tokens]
        points = [(place, 100 * rate) for place, rate in enumerate(rates, 1)]
        yield Series(name, points, joined=name == simulated, colour=COLOUR[way])


def _drafting(result: ScheduleResult) -> _Drafting:
    schedule = result.candidate.schedule
    if schedule.is_tree:
        return "tree"
    if schedule.traits.finds_text:
        return "prompt lookup"
    return "draft with exit features" if schedule.exit_features else "draft alone"


def sweep_picture(sweep: Sweep, whose: str) -> Markup:
    """Plot the best time of every kind over a quantity, with points at today's value and at the break-evens.

    `whose` names the tokens that the acceptance is of, see `whose_tokens`.
    """
    is_speed, lines = sweep.quantity == "draft_speed", sweep.best_tpot_s
    shown = np.array(sweep.values) * (1 if is_speed else 100)
    series = [
        Series(
            KINDS[kind],
            [(at, 1e3 * time_s) for at, time_s in zip(shown.tolist(), times_s, strict=True)],
            colour=KIND_COLOUR[kind],
        )
        for kind, times_s in lines.items()
    ]
    now = sweep.values.index(sweep.now)
    points, labels = [(float(shown[now]), 1e3 * min(times_s[now] for times_s in lines.values()))], ["today"]
    for kind, found in sweep.break_evens.items():
        x, tpot_s = (float(np.interp(found.at, sweep.values, of)) for of in (shown, lines[kind]))
        points.append((x, 1e3 * tpot_s))
        labels.append(factor(found.at) if is_speed else percent(found.at))
    name = "today, and where another is fastest"
    series.append(Series(name, points, joined=False, labels=labels, colour="--ink"))
    return xy_plot(
        series,
        x_title="speed of the draft, times today's (logarithmic)" if is_speed else f"{whose} that are right, %",
        y_title="ms per token",
        alt="Time per token of every kind of decoding by " + ("speed of the draft" if is_speed else "acceptance"),
        x_ticks=_ROUND_SPEEDS if is_speed else (),
        is_logarithmic=is_speed,
    )
