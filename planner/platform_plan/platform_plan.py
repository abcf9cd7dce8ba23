"""`mirrorsd plan`: an answer from a platform's data sheets and two model shapes; no model is downloaded or run."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import hypot
from typing import Final

from costs.cost_model import LaneCost
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.first_of_each import first_of_each
from planner.html_table import html_table
from planner.paired_ratio import Ratio, ratio_of
from planner.platform_plan.device_pairs import LanePair, LeftOut
from planner.platform_plan.memory_fit import MemoryNeed, Places, places_of
from planner.platform_plan.question import Question, demand_of
from planner.platform_plan.ranked_schedules import (
    Doubts,
    NotRanked,
    PlannedSchedule,
    ranked,
    schedule_names_of,
)
from planner.verdict import PAYS, Pays
from planner.wording import percent
from sim.derived.assumption import Assumption
from sim.derived.derived_profile import DerivedProfile, derived_profile
from sim.evaluator import Evaluator

RATES: Final = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""Acceptance rates at which times are predicted; between them, ratios are interpolated linearly."""
_MOST_LEADERS: Final = 4
"""How many of the fastest combinations of method and placement the break-even acceptance is computed for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenRate:
    """The acceptance rate at which speculation is as fast as plain decoding.

    Attributes:
        at: that rate; None if the faster one is the same at all of `RATES`.
        always, never: whether speculation is predicted to be faster, or slower, at all of `RATES`.
    """

    at: float | None = None
    always: bool = False
    never: bool = False

    @staticmethod
    def of(rates: Sequence[float], ratio: Callable[[float], float]) -> "BreakEvenRate":
        """Return where `ratio`, the speed-up at a rate, reaches 1."""
        ends = ratio(rates[0]), ratio(rates[-1])
        return BreakEvenRate(at=crossing(rates, ratio), always=min(ends) > 1, never=max(ends) < 1)

    @property
    def breaks_even(self) -> str:
        """The rate for a table's cell, or that it is below or above `RATES`; a dash if unknown."""
        if self.at is not None:
            return percent(self.at)
        if self.always:
            return f"below {percent(RATES[0])}"
        return f"above {percent(RATES[-1])}" if self.never else "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceNeeded(BreakEvenRate):
    """The break-even rate with its interval.

    Attributes:
        now: the assumed or recorded rate.
        low: below this rate speculation is slower beyond its interval; None if at all of `RATES`, or at none.
        high: above this rate speculation is faster beyond its interval; None if at all of `RATES`, or at none.
    """

    now: float
    low: float | None
    high: float | None

    def is_cleared(self, end: float | None, error: float) -> bool:
        """Return whether `now` is beyond the break-even rate by more than both errors, which are independent, combined.

        Args:
            end: `low` or `high`, whichever is on the side of `now`.
            error: half-width of the interval of `now`.
        """
        at = self.at or (RATES[0] if self.always else RATES[-1])
        return end is None or abs(self.now - at) > hypot(end - at, error)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformPlan:
    """The answer to a question.

    Attributes:
        machine: the platform's profile and costs.
        ranking: all schedules, the fastest first.
        needed: the break-even acceptance; None if nothing drafts.
        places: the placements that fit, one of each set of equal ones, and what each memory has to hold.
        equal: placements that differ only in names from a ranked one, with the ranked one.
        not_ranked: what was not predicted, and why.
        assumptions: every number that the answer depends on.
        seconds: how long planning took.
    """

    question: Question
    machine: DerivedProfile
    ranking: tuple[PlannedSchedule, ...]
    needed: AcceptanceNeeded | None
    places: Places
    equal: Mapping[LanePair, LanePair]
    not_ranked: tuple[NotRanked, ...]
    assumptions: tuple[Assumption, ...]
    seconds: float

    def __repr__(self) -> str:
        """Return one line: the ranking would fill pages."""
        speedup = "" if self.comparison is None else f", {self.comparison.value:.2f} times plain decoding"
        return f"<PlatformPlan of {len(self.ranking)} schedules: pays {self.pays}{speedup}>"

    def _repr_html_(self) -> str:
        """Return the best of every method and placement as a table, for notebooks."""
        best = best_of_each(self.ranking)
        names = schedule_names_of(best)
        rows = [(name, one.place, f"{1e3 * one.tpot_s:.1f}") for name, one in zip(names, best, strict=True)]
        return html_table(repr(self).strip("<>"), ("schedule", "place", "ms per token"), rows)

    @property
    def names(self) -> dict[Schedule, str]:
        """A name for each schedule of the ranking, different from all others."""
        names = schedule_names_of(self.ranking)
        return {one.schedule: name for one, name in zip(self.ranking, names, strict=True)}

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not predicted, and why, in words."""
        return tuple(map(str, self.not_ranked))

    @property
    def needs(self) -> tuple[MemoryNeed, ...]:
        """What every memory of every placement has to hold."""
        return self.places.needs

    @property
    def profile(self) -> Profile:
        """The machine's profile, as simulators take it."""
        return self.machine.profile

    @property
    def costs(self) -> Mapping[str, LaneCost]:
        """The cost model of each lane."""
        return self.machine.costs

    @property
    def doubts(self) -> Doubts:
        """The errors of its predictions on lanes that were not timed."""
        return Doubts(self.question, self.machine, self.plain.tpot_s)

    @property
    def comparison(self) -> Ratio | None:
        """Speed of the fastest speculation over the fastest plain decoding; None if nothing drafts."""
        return None if self.drafting is None else self.compared(self.drafting)

    @property
    def pays(self) -> Pays:
        """Whether speculation beats plain decoding, given the uncertainty of data sheets and of acceptance."""
        if self.comparison is None:
            return "no"
        return "cannot_tell" if self.turns_on_acceptance else PAYS[self.comparison.outcome]

    @property
    def turns_on_acceptance(self) -> bool:
        """Whether the answer is "cannot tell" only because acceptance is not known well enough."""
        rate, needed = self.question.acceptance, self.needed
        if needed is None or self.comparison is None:
            return False
        if self.comparison.outcome == "faster":
            return not needed.is_cleared(needed.high, rate.value - rate.low)
        return self.comparison.outcome == "slower" and not needed.is_cleared(needed.low, rate.high - rate.value)

    def equal_to(self, pair: LanePair) -> list[LanePair]:
        """Return the placements that differ from a ranked one only in names."""
        return [one for one, other in self.equal.items() if other == pair]

    def compared(self, one: PlannedSchedule, other: PlannedSchedule | None = None) -> Ratio:
        """Return the speed of a schedule over another one, or over the fastest plain decoding; shared errors cancel."""
        return ratio_of(one.prediction, (other or self.plain).prediction)

    @property
    def plain(self) -> PlannedSchedule:
        """The fastest plain decoding."""
        return next(one for one in self.ranking if not one.schedule.num_speculative_tokens)

    @property
    def speculation(self) -> list[PlannedSchedule]:
        """All schedules that draft and need no training, the fastest first."""
        return [one for one in self.ranking if one.schedule.num_speculative_tokens and not one.needs_training]

    @property
    def drafting(self) -> PlannedSchedule | None:
        """The fastest of `speculation`; None if it is empty."""
        return next(iter(self.speculation), None)

    @property
    def best(self) -> PlannedSchedule:
        """The fastest schedule that needs no training."""
        return next(one for one in self.ranking if not one.needs_training)

    @property
    def recommended(self) -> PlannedSchedule:
        """The schedule to run: the fastest speculation, or plain decoding where that is predicted to be faster."""
        return self.plain if self.drafting is None or self.plain.tpot_s <= self.drafting.tpot_s else self.drafting

    @property
    def after_training(self) -> PlannedSchedule | None:
        """The fastest of all schedules, if it needs an exit to be trained; else None."""
        best = self.ranking[0]
        return best if best.needs_training else None


def best_of_each(ranking: Iterable[PlannedSchedule]) -> list[PlannedSchedule]:
    """Return the fastest of every method on every placement, in the order of a ranking."""
    return first_of_each(ranking, lambda one: (one.pair, one.schedule.method, one.schedule.root_source))


def plan_platform(question: Question) -> PlatformPlan:
    """Rank every schedule on every placement that fits, and say whether speculation pays.

    Raises:
        PlanError: the target fits nowhere; says what is missing.
        ProfileError: the platform's sheets lack what no guess can stand in for.
    """
    started = time.perf_counter()
    places = places_of(question)
    derived = derived_profile(question.platform, demand_of(question, places.lanes))
    places, equal = places.without_equal(derived, question.platform)
    ranking, left_out = ranked(question, places, derived)
    plan = PlatformPlan(
        question=question,
        machine=derived,
        ranking=tuple(one for one in ranking if one.pair not in equal),
        needed=None,
        places=places,
        equal=equal,
        not_ranked=(
            *places.left_out,
            *left_out,
            *(LeftOut(str(one), f"equal to {other}") for one, other in equal.items()),
        ),
        assumptions=(question.acceptance, *question.assumptions, *derived.assumptions),
        seconds=0.0,
    )
    if plan.drafting is not None:
        plan = replace(plan, needed=acceptance_needed(_shortlist(plan), plan.plain.schedule, derived, question))
    return replace(plan, seconds=time.perf_counter() - started)


def _shortlist(plan: PlatformPlan) -> list[Schedule]:
    """Return, for each leading method and placement, the fastest schedule of every number of rows."""

    def way(one: PlannedSchedule) -> tuple[object, ...]:
        return one.schedule.target_lane, one.schedule.draft_lane, one.schedule.method, one.schedule.root_source

    leading = set(map(way, best_of_each(plan.speculation)[:_MOST_LEADERS]))
    candidates = (one for one in plan.speculation if way(one) in leading)
    return [one.schedule for one in first_of_each(candidates, lambda one: (way(one), one.schedule.num_rows))]


def acceptance_needed(
    schedules: Sequence[Schedule], plain: Schedule, machine: DerivedProfile, question: Question
) -> AcceptanceNeeded:
    """Compare the best of `schedules` (at least one; all draft) with `plain`, at `RATES` and at the question's rate."""
    now = question.acceptance.value
    rates = sorted({*RATES, now})
    evaluator = Evaluator(machine.profile, question.record, costs=machine.costs)

    @cache
    def best(rate: float) -> Ratio:
        there = evaluator.with_texts(question.record_at(rate))
        drafting, of_plain = min(schedules, key=there.tpot_s), there.predict(plain)
        doubts = Doubts(question, machine, of_plain.tpot_s)
        return ratio_of(doubts.added(drafting, there.predict(drafting)), of_plain)

    return AcceptanceNeeded(
        **asdict(BreakEvenRate.of(rates, lambda rate: best(rate).value)),
        now=now,
        low=crossing(rates, lambda rate: best(rate).high),
        high=crossing(rates, lambda rate: best(rate).low),
    )


def crossing(rates: Sequence[float], ratio: Callable[[float], float]) -> float | None:
    """Return the rate at which `ratio`, which rises with the rate, reaches 1; None if it is always, or never, above."""
    if ratio(rates[0]) >= 1 or ratio(rates[-1]) < 1:
        return None
    place = bisect_left(rates, True, lo=1, hi=len(rates) - 1, key=lambda rate: ratio(rate) >= 1)
    before, after = rates[place - 1], rates[place]
    return before + (after - before) * (1 - ratio(before)) / (ratio(after) - ratio(before))
