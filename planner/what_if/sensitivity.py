"""What would have to change for another kind of decoding to win, and what a faster part would bring.

All questions are put to a shortlist, the best schedule of every method, placement and number of drafted tokens, not
to the whole space again: a sweep asks dozens of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Literal, get_args

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.kinds import Kind, kind_of
from planner.search.search import SearchResult
from planner.what_if.mixed_record import token_acceptance, with_acceptance
from planner.what_if.scaled_profile import Part, with_speed
from sim.evaluator import evaluate

Quantity = Literal["acceptance", "draft_speed"]
ACCEPTANCES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
DRAFT_SPEEDS = (0.125, 0.25, 0.5, 0.707, 1.414, 2.0, 4.0, 8.0)
NUM_BISECTIONS = 6
FASTER = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The best time per token of every kind while one quantity moves.

    Attributes:
        quantity: `acceptance` (share of tokens the draft gets right) or `draft_speed` (times as fast as measured).
        now: the quantity's value today; one of `values`.
        values: ascending.
        best_tpot_s: for each kind, at each of `values`.
        ties: for each kind that is not the fastest today, the nearest value at which it is as fast as the best of the
            others; None if there is none among the values.
    """

    quantity: Quantity
    now: float
    values: tuple[float, ...]
    best_tpot_s: dict[Kind, tuple[float, ...]]
    ties: dict[Kind, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """The answers to all questions; `gains` are shares of tokens per second that ten percent more speed brings."""

    sweeps: tuple[Sweep, ...]
    gains: dict[Part, float]


Ask = Callable[[float], dict[Kind, float]]
"""The best time per token of every kind if a quantity had some value."""


def analyse(result: SearchResult, profile: Profile, record: AcceptanceRecord) -> Sensitivity:
    """Sweep acceptance and draft speed, and try each part ten percent faster."""
    schedules = shortlist(result)
    now_s = min(best_times(schedules, profile, record).values())
    faster_s: dict[Part, float] = {
        part: min(best_times(schedules, with_speed(profile, part, FASTER), record).values()) for part in get_args(Part)
    }
    gains = {part: now_s / then_s - 1 for part, then_s in faster_s.items()}
    if result.best_drafting() is None:
        return Sensitivity(sweeps=(), gains=gains)

    def at_acceptance(value: float) -> dict[Kind, float]:
        return best_times(schedules, profile, with_acceptance(record, value))

    def at_draft_speed(value: float) -> dict[Kind, float]:
        return best_times(schedules, with_speed(profile, "draft", value), record)

    acceptance = sweep("acceptance", at_acceptance, now=token_acceptance(record), grid=ACCEPTANCES)
    draft_speed = sweep("draft_speed", at_draft_speed, now=1.0, grid=DRAFT_SPEEDS)
    return Sensitivity(sweeps=(acceptance, draft_speed), gains=gains)


def shortlist(result: SearchResult) -> list[Schedule]:
    """The best schedule of every method, root source, placement and number of drafted tokens."""
    best: dict[tuple[object, ...], Schedule] = {}
    for candidate in result.candidates:
        schedule = candidate.schedule
        kind = (schedule.method, schedule.root_source, candidate.placement, schedule.num_rows)
        best.setdefault(kind, schedule)
    return list(best.values())


def best_times(schedules: Sequence[Schedule], profile: Profile, record: AcceptanceRecord) -> dict[Kind, float]:
    """The fastest predicted time per token of every kind among `schedules`."""
    best: dict[Kind, float] = {}
    for schedule, prediction in zip(schedules, evaluate(schedules, profile, record), strict=True):
        kind = kind_of(schedule)
        best[kind] = min(prediction.tpot_s, best.get(kind, inf))
    return best


def sweep(quantity: Quantity, ask: Ask, *, now: float, grid: Sequence[float]) -> Sweep:
    """Ask for every value of `grid` and for `now`, and look for ties between them."""
    values = tuple(sorted({*grid, now}))
    times = [ask(value) for value in values]
    here = values.index(now)
    fastest = min(times[here], key=times[here].__getitem__)

    def tie(challenger: Kind) -> float | None:
        """Walk away from today in both directions until the challenger leads, then halve the step."""
        found = []
        for way in (range(here - 1, -1, -1), range(here + 1, len(values))):
            beyond = next((index for index in way if _leads(times[index], challenger)), None)
            if beyond is not None:
                before, past = values[beyond - way.step], values[beyond]
                found.append(_bisect(lambda value: _leads(ask(value), challenger), before, past))
        # A quantity that is 0 today has no ratio to anything, and ties on one side only.
        return found[0] if len(found) == 1 else min(found, key=lambda value: abs(log(value / now)), default=None)

    return Sweep(
        quantity=quantity,
        now=now,
        values=values,
        best_tpot_s={kind: tuple(at_value[kind] for at_value in times) for kind in times[0]},
        ties={kind: tie(kind) for kind in times[0] if kind != fastest},
    )


def _leads(times_s: dict[Kind, float], challenger: Kind) -> bool:
    return all(times_s[challenger] < time_s for kind, time_s in times_s.items() if kind != challenger)


def _bisect(is_past: Callable[[float], bool], before: float, past: float) -> float:
    """A value between `before` (not past) and `past` where the answer changes."""
    for _ in range(NUM_BISECTIONS):
        middle = (before + past) / 2
        if is_past(middle):
            past = middle
        else:
            before = middle
    return (before + past) / 2
