"""What the report of a run shows as pictures: lanes over time, acceptance, the search, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, Literal, NamedTuple

import numpy as np
from markupsafe import Markup

from decoding.metrics import per_position_acceptance_rate
from decoding.schedule import MAX_WINDOW, Schedule
from decoding.trace import Trace, Work
from planner.pictures.rounds_picture import KEY, TARGET_WORK, Key, lanes_of, rounds_picture
from planner.pictures.xy_plot import Axis, Series, xy_plot
from planner.report.report_data import ScheduleResult
from planner.search.search import Candidate, SearchResult
from planner.what_if.sensitivity import Sweep
from planner.wording import Kind, capital, kind_of, milliseconds

KIND_COLOUR: Final[dict[Kind, str]] = {
    "plain": "var(--plain)",
    "lookup": "var(--tree)",
    "synchronous": "var(--sync)",
    "tree": "var(--tree)",
    "mirror": "var(--mirror)",
}
_SIGNS: Final = "●■◆▲○□◇△▼▽✚✖"
"""Markers of lines, in the order in which lines get them: they tell lines of one colour apart."""
_DASHES: Final = ("", "6 4", "2 3", "8 3 2 3")
_NUM_ROUNDS: Final = 10
"""Rounds of the fastest schedule's simulated trace that set the stretch of time shown."""
_SPEEDS: Final = (0.125, 0.25, 0.5, 1, 2, 4, 8)
Drafting = Literal["draft alone", "draft with exit features", "tree"]
_DRAFTING_COLOUR: Final[dict[Drafting, str]] = {
    "draft alone": "var(--rollout)",
    "draft with exit features": "var(--branch)",
    "tree": "var(--tree)",
}


class Timeline(NamedTuple):
    """A schedule's lanes over the same seconds in every world that it was played in."""

    name: str
    worlds: Sequence[tuple[str, Markup]]


def common_end_s(results: Sequence[ScheduleResult]) -> float:
    """Return a stretch of time for all timelines: the first rounds of the schedule that is through with them first."""
    ends = []
    for result in results:
        trace = result.simulated[0]
        ends.append(trace.rounds[:_NUM_ROUNDS][-1].end_s if trace.rounds else trace.decode_s)
    return min(ends, default=0.0)


def timelines(results: Sequence[ScheduleResult]) -> Iterator[Timeline]:
    """Yield the first prompt of every result, all over the same seconds from the start of decoding."""
    end_s = common_end_s(results)
    num_letters = max((len(lane) for result in results for lane in lanes_of(result.candidate.schedule)), default=0)
    for result in results:
        worlds = [("Simulated", result.simulated[0]), *(("Measured", trace) for trace in result.measured[:1])]
        pictures = [
            (
                world,
                rounds_picture(trace, result.candidate.schedule, end_s=end_s, num_letters=num_letters, with_key=False),
            )
            for world, trace in worlds
        ]
        yield Timeline(capital(result.name), pictures)


def timeline_keys(results: Sequence[ScheduleResult]) -> list[Key]:
    """Return the legend of all timelines together."""
    used = {span.work for result in results for span in result.simulated[0].spans}
    found = [key for work, key in KEY.items() if work in used]
    if used - {*TARGET_WORK, Work.TRANSFER}:
        found.append(Key("var(--faint)", "pale: the target waits for it", "pale"))
    if any(entry.hit is not None for result in results for entry in result.simulated[0].rounds):
        found += [Key("var(--hit)", "hit: the next window is ready", "dot"), Key("var(--miss)", "miss", "cross")]
    return found


def longest_windows(results: Sequence[ScheduleResult]) -> list[ScheduleResult]:
    """For every way of drafting the result with the most drafted tokens; measured ones go first."""

    def preference(result: ScheduleResult) -> tuple[bool, int]:
        return bool(result.measured), result.candidate.schedule.num_rows

    longest: dict[Drafting, ScheduleResult] = {}
    for result in results:
        if result.candidate.schedule.num_speculative_tokens:
            way = _drafting(result.candidate.schedule)
            longest[way] = max(longest.get(way, result), result, key=preference)
    return [longest[way] for way in _DRAFTING_COLOUR if way in longest]


def acceptance(results: Sequence[ScheduleResult]) -> Markup | None:
    """Share of rounds that accept each drafted position, or level of a tree; None without a result."""
    if not results:
        return None
    series = [line for result in results for line in _accepted(result)]
    return xy_plot(
        series,
        Axis("drafted position", ticks=range(1, max(len(one.points) for one in series) + 1)),
        Axis("accepted, % of rounds", ticks=(0, 20, 40, 60, 80, 100), ends=(0.0, 104.0)),
        alt="Share of rounds that accept each drafted position",
    )


def _accepted(result: ScheduleResult) -> Iterator[Series]:
    schedule = result.candidate.schedule
    way = _drafting(schedule)
    draft = f"{schedule.traits.title}, {schedule.num_speculative_tokens} deep" if schedule.is_tree else way
    length = result.candidate.prediction.mean_acceptance_length
    name = f"{draft}: {length:.2f} tokens per round with {schedule.num_rows - 1} drafted"
    colour = _DRAFTING_COLOUR[way]
    yield Series(name, _shares(result.simulated, schedule), colour=colour, is_hollow=True)
    if result.measured:
        points = _shares(result.measured, schedule)
        yield Series("", points, joined=False, colour=colour, sign="•")


def _shares(traces: Sequence[Trace], schedule: Schedule) -> list[tuple[float, float]]:
    rates = per_position_acceptance_rate(traces)[: schedule.num_speculative_tokens]
    return [(place, 100 * rate) for place, rate in enumerate(rates, 1)]


def _drafting(schedule: Schedule) -> Drafting:
    if schedule.is_tree:
        return "tree"
    return "draft with exit features" if schedule.exit_features else "draft alone"


def break_even_figure(sweep: Sweep) -> Markup:
    """Return a line for every kind, and a ring where another one becomes the fastest."""
    is_speed = sweep.quantity == "draft_speed"
    unit, sign = (1.0, "×") if is_speed else (100.0, " %")
    ties = {kind: at for kind, at in sweep.ties.items() if at is not None}
    lines = [
        Series(
            kind,
            [(unit * value, 1e3 * time_s) for value, time_s in zip(sweep.values, times_s, strict=True)],
            colour=KIND_COLOUR[kind],
            sign=mark,
            dash=dash,
        )
        for (kind, times_s), mark, dash in zip(sweep.best_tpot_s.items(), _SIGNS, cycle(_DASHES), strict=False)
    ]
    rings = Series(
        "",
        [(unit * at, 1e3 * float(np.interp(at, sweep.values, sweep.best_tpot_s[kind]))) for kind, at in ties.items()],
        joined=False,
        labels=[f"{unit * at:.2g}{sign}" for at in ties.values()],
        colour="var(--ink)",
        is_hollow=True,
    )
    title = "speed of the draft, logarithmic" if is_speed else "tokens the draft gets right, %"
    x = Axis(title, ticks=_SPEEDS, is_logarithmic=True) if is_speed else Axis(title, ends=(0.0, 100.0))
    return xy_plot(
        [*lines, rings],
        x,
        Axis("ms per token"),
        alt=f"Best predicted time per token of every kind over {title}",
        upright=(unit * sweep.now, "today"),
    )


def landscape(result: SearchResult) -> Markup | None:
    """Best time per token over the drafted tokens, a line per kind; None if nothing drafts. Ratios are distances."""
    lines: dict[str, dict[int, Candidate]] = {}
    for candidate in result.candidates:  # the fastest first
        if count := _num_drafted(candidate):
            kind = short_kind(candidate.schedule, candidate.placement)
            lines.setdefault(kind, {}).setdefault(count, candidate)
    if not lines:
        return None
    plain, winner = result.best(kind="plain"), result.winner
    series = [
        Series(
            kind,
            [(count, 1e3 * line[count].tpot_s) for count in sorted(line)],
            colour=KIND_COLOUR[kind_of(next(iter(line.values())).schedule)],
            sign=sign,
            dash=dash,
        )
        for (kind, line), sign, dash in zip(lines.items(), cycle(_SIGNS), cycle(_DASHES), strict=False)
    ]
    if drafted := _num_drafted(winner):
        name = f"the fastest, {milliseconds(winner.tpot_s)}"
        series.append(Series(name, [(drafted, 1e3 * winner.tpot_s)], joined=False, colour="var(--ink)", sign="★"))
    heights = [height for one in series for _, height in one.points] + ([] if plain is None else [1e3 * plain.tpot_s])
    margin = max(1.05, (max(heights) / min(heights)) ** 0.1)
    return xy_plot(
        series,
        _drafted_axis(sorted(set().union(*lines.values()))),
        Axis("ms per token, logarithmic", ends=(min(heights) / margin, max(heights) * margin), is_logarithmic=True),
        alt="Best predicted time per token of every kind of decoding over the number of drafted tokens",
        level=None if plain is None else 1e3 * plain.tpot_s,
        level_name="plain decoding",
    )


def _num_drafted(candidate: Candidate) -> int:
    return candidate.schedule.num_rows - 1


def _drafted_axis(counts: list[int]) -> Axis:
    """Even steps for chains; ratios where trees are much wider."""
    if counts[-1] <= MAX_WINDOW:
        return Axis("drafted tokens per round", ticks=counts)
    shown = [count for count in counts if count <= 4 or count % 2 == 0]
    return Axis("drafted tokens per round, logarithmic", ticks=shown, is_logarithmic=True)


def short_kind(schedule: Schedule, placement: str) -> str:
    """Return a kind of schedule as a label of a line: `mirror exit`, `synchronous pooled`, `plain split`, `EAGLE-3`."""
    if schedule.traits.overlaps:
        return f"mirror {schedule.root_source}"
    if schedule.is_tree:
        return schedule.traits.title.removeprefix("speculative ")
    return f"{kind_of(schedule)} {placement}"


class ExitLayers(NamedTuple):
    """Best ms per token by exit layer and number of drafted tokens; None where there is no such schedule."""

    windows: Sequence[int]
    rows: Sequence[tuple[int, Sequence[float | None]]]

    @property
    def ends(self) -> tuple[float, float]:
        """The fastest and the slowest."""
        known = [time for _, row in self.rows for time in row if time is not None]
        return min(known), max(known)

    def slow_percent(self, time: float) -> float:
        """Return where between the fastest and the slowest a time stands."""
        fastest, slowest = self.ends
        return 100 * (time - fastest) / ((slowest - fastest) or 1.0)


def exit_layers(result: SearchResult) -> ExitLayers | None:
    """Return the exits against each other; None with fewer than two."""
    best: dict[tuple[int, int], float] = {}
    for candidate in result.candidates:
        schedule = candidate.schedule
        if schedule.exit_layer is not None:
            best.setdefault((schedule.exit_layer, schedule.num_speculative_tokens), 1e3 * candidate.tpot_s)
    layers = sorted({layer for layer, _ in best})
    windows = sorted({window for _, window in best})
    rows = [(layer, [best.get((layer, window)) for window in windows]) for layer in layers]
    return ExitLayers(windows, rows) if len(layers) > 1 else None
