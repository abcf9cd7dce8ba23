"""The whole way from a platform and two model shapes to an answer; nothing is measured, downloaded or run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Final

from decoding.errors import PlanError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.platform import Platform
from hwprofiles.profile import Profile
from planner.measured_verdict import PAYS, Pays
from planner.paired_ratio import Ratio
from planner.platform_plan.acceptance_needed import AcceptanceNeeded, acceptance_needed
from planner.platform_plan.device_pairs import LanePair, lane_pairs, usable_lanes
from planner.platform_plan.memory_fit import MemoryNeed, needs_of
from planner.platform_plan.most_speedup import most_speedup
from planner.platform_plan.question import Question
from planner.platform_plan.running_cost import energy_j_per_token, usd_per_million_tokens
from planner.platform_plan.schedules import schedules_on
from planner.search.comparison import comparer
from planner.wording import counted, factor
from sim.derived.assumption import Assumption
from sim.derived.derived_profile import Demand, derived_profile
from sim.derived.roofline import growth_error
from sim.error_shares import interval
from sim.evaluator import Evaluator
from sim.prediction import Prediction

TOO_SLOW: Final = 2.0
"""A lane that takes plain decoding so many times as long as the best one is no place for the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSchedule:
    """A schedule on a placement, and what is predicted for it.

    Attributes:
        schedule, pair, prediction: itself.
        speedup: time per token of the fastest plain decoding over its own.
        bound: the most that this could be on these lanes with this window.
        energy_j_per_token, usd_per_million_tokens: None where sheets do not say enough.
    """

    schedule: Schedule
    pair: LanePair
    prediction: Prediction
    speedup: float
    bound: float
    energy_j_per_token: float | None
    usd_per_million_tokens: float | None

    @property
    def tpot_s(self) -> float:
        """Predicted time per token."""
        return self.prediction.tpot_s

    @property
    def relative_error(self) -> float:
        """Half-width (90 %) of that time, relative."""
        return hypot(self.prediction.relative_error, self.few_rows_error)

    @property
    def few_rows_error(self) -> float:
        """What it may be off by for what nobody measured of verifications of a few rows."""
        prediction = self.prediction
        return growth_error(self.schedule.num_rows) * prediction.target_busy_s / prediction.decode_s

    @property
    def tpot_s_low(self) -> float:
        """Lower end of its interval."""
        return interval(self.tpot_s, self.relative_error)[0]

    @property
    def tpot_s_high(self) -> float:
        """Upper end of its interval."""
        return interval(self.tpot_s, self.relative_error)[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformPlan:
    """The answer.

    Attributes:
        question: what was asked.
        profile: what was worked out of the machine.
        ranking: all schedules, the fastest first.
        comparison: the fastest speculation with the fastest plain decoding; None if nothing drafts.
        needed: what acceptance would have to be; None if nothing drafts.
        needs: what every memory of every placement has to hold.
        left_out: placements that were not asked about, and why.
        assumptions: every number that it stands on.
        seconds: how long it took.
    """

    question: Question
    profile: Profile
    ranking: tuple[PlannedSchedule, ...]
    comparison: Ratio | None
    needed: AcceptanceNeeded | None
    needs: tuple[MemoryNeed, ...]
    left_out: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    seconds: float

    @property
    def pays(self) -> Pays:
        """Whether speculation beats plain decoding, as far as sheets and what is known of acceptance can tell."""
        if self.comparison is None:
            return "no"
        found = PAYS[self.comparison.outcome]
        return "cannot_tell" if self.turns_on_acceptance else found

    @property
    def turns_on_acceptance(self) -> bool:
        """Whether sheets would tell, were acceptance known better."""
        if self.needed is None or self.comparison is None:
            return False
        rate, needed = self.question.acceptance, self.needed
        if self.comparison.outcome == "faster":
            return needed.high is not None and needed.high > rate.low
        return self.comparison.outcome == "slower" and needed.low is not None and needed.low < rate.high

    def compared(self, one: PlannedSchedule) -> Ratio:
        """A schedule with the fastest plain decoding; what few rows may cost is not among the errors of tables."""
        found = comparer(self.profile, self.question.record)(one.schedule, self.plain.schedule)
        return replace(found, machine_error=hypot(found.machine_error, one.few_rows_error))

    @property
    def plain(self) -> PlannedSchedule:
        """The fastest plain decoding."""
        return next(one for one in self.ranking if not one.schedule.num_speculative_tokens)

    @property
    def drafting(self) -> PlannedSchedule | None:
        """The fastest speculation."""
        return next((one for one in self.ranking if one.schedule.num_speculative_tokens), None)

    def leaders(self) -> list[PlannedSchedule]:
        """The fastest of every method on every placement, in the order of the ranking."""
        found: dict[object, PlannedSchedule] = {}
        for one in self.ranking:
            found.setdefault((one.pair, one.schedule.method, one.schedule.root_source), one)
        return list(found.values())


def plan_platform(question: Question) -> PlatformPlan:
    """Rank every schedule on every placement that fits, and say whether speculation pays.

    Raises:
        PlanError: the target fits nowhere; says what is missing.
        ProfileError: the platform's sheets lack what no guess can stand in for.
    """
    started = time.perf_counter()
    pairs, needs, left_out = _fitting(question)
    lanes = list(dict.fromkeys(lane for pair in pairs for lane in (pair.target, pair.draft)))
    demand = Demand(
        target=question.target,
        draft=question.draft,
        lanes=lanes,
        exits=question.record.exit_layers,
        max_context=question.num_tokens,
    )
    derived = derived_profile(question.platform, demand)
    profile = derived.profile
    evaluator = Evaluator(profile, question.record)
    plain = _plain(pairs, evaluator)
    if not plain:
        reasons = {evaluator.missing(Schedule(method="autoregressive", target_lane=lane)) for lane in lanes}
        raise PlanError(f"{question.target} can be decoded nowhere: {'; '.join(sorted(map(str, reasons)))}")
    fastest_s = min(prediction.tpot_s for prediction in plain.values())
    slow = {lane for lane, prediction in plain.items() if prediction.tpot_s > TOO_SLOW * fastest_s}
    left_out += [
        f"target on {lane}: plain decoding takes {factor(plain[lane].tpot_s / fastest_s)} as long as on the best lane"
        for lane in sorted(slow)
    ]
    kept = [pair for pair in pairs if pair.target in plain and pair.target not in slow]
    found = list(_predicted(kept, profile, evaluator, question.record, left_out))
    context = float(sum(question.record.contexts) / len(question.record.contexts))
    ranking = tuple(
        sorted(
            (_priced(question.platform, profile, *one, plain_s=fastest_s, context=context) for one in found),
            key=lambda one: one.tpot_s,
        )
    )
    plan = PlatformPlan(
        question=question,
        profile=profile,
        ranking=ranking,
        comparison=None,
        needed=None,
        needs=tuple(needs),
        left_out=tuple(left_out),
        assumptions=(question.acceptance, *question.assumptions, *derived.assumptions),
        seconds=0.0,
    )
    return _judged(plan, started)


def _fitting(question: Question) -> tuple[list[LanePair], list[MemoryNeed], list[str]]:
    """Placements whose memories hold both models, what all need, and what was left out."""
    longest = max(prompt.prompt_length for prompt in question.record.prompts)
    lanes, left_out = usable_lanes(question.platform, longest)
    pairs, needs = [], []
    for pair in lane_pairs(question.platform, lanes):
        found = needs_of(question, pair)
        needs += found
        misfits = [need.in_words for need in found if not need.fits]
        left_out += misfits
        if not misfits:
            pairs.append(pair)
    if not any(pair.is_pooled for pair in pairs):
        reasons = " ".join(f"{reason.rstrip('.')}." for reason in left_out)
        msg = f"{question.target} with {question.draft} fits nowhere on {question.platform.name}: {reasons}"
        raise PlanError(msg)
    return pairs, needs, left_out


def _plain(pairs: Sequence[LanePair], evaluator: Evaluator) -> dict[str, Prediction]:
    """Plain decoding on every lane that holds the target."""
    lanes = dict.fromkeys(pair.target for pair in pairs)
    schedules = {lane: Schedule(method="autoregressive", target_lane=lane) for lane in lanes}
    return {lane: evaluator.predict(one) for lane, one in schedules.items() if evaluator.missing(one) is None}


def _predicted(
    pairs: Sequence[LanePair], profile: Profile, evaluator: Evaluator, record: AcceptanceRecord, left_out: list[str]
) -> Iterator[tuple[Schedule, LanePair, Prediction]]:
    reasons: dict[str, int] = {}
    for pair in pairs:
        for schedule in schedules_on(pair, str(profile.drafter), record.exit_layers, record.num_streams):
            reason = evaluator.missing(schedule)
            if reason is None:
                yield schedule, pair, evaluator.predict(schedule)
            else:
                reasons[reason] = reasons.get(reason, 0) + 1
    left_out += [f"{counted(count, 'schedule')}: {reason}" for reason, count in reasons.items()]


def _priced(
    platform: Platform,
    profile: Profile,
    schedule: Schedule,
    pair: LanePair,
    prediction: Prediction,
    *,
    plain_s: float,
    context: float,
) -> PlannedSchedule:
    used = pair if schedule.draft_lane is not None else LanePair(pair.target, pair.target, in_turn=True)
    return PlannedSchedule(
        schedule=schedule,
        pair=used,
        prediction=prediction,
        speedup=plain_s / prediction.tpot_s,
        bound=most_speedup(schedule, profile, plain_s, context),
        energy_j_per_token=energy_j_per_token(platform, used, prediction),
        usd_per_million_tokens=usd_per_million_tokens(platform, used, prediction),
    )


def _judged(plan: PlatformPlan, started: float) -> PlatformPlan:
    """The plan with its comparison and what acceptance would have to be."""
    drafting, question = plan.drafting, plan.question
    if drafting is None:
        return replace(plan, seconds=time.perf_counter() - started)
    plain = plan.plain.schedule
    leaders = [one.schedule for one in plan.leaders() if one.schedule.num_speculative_tokens][:_MOST_LEADERS]
    return replace(
        plan,
        comparison=plan.compared(drafting),
        needed=acceptance_needed(
            _shortlist(plan, leaders), plain, plan.profile, question.record_at, now=question.acceptance.value
        ),
        seconds=time.perf_counter() - started,
    )


_MOST_LEADERS: Final = 4


def _shortlist(plan: PlatformPlan, leaders: Sequence[Schedule]) -> list[Schedule]:
    """Every window of the leading methods and placements, with the best settings that they have today."""
    found: dict[object, Schedule] = {}
    keys: Mapping[object, None] = dict.fromkeys(map(_way, leaders))
    for one in plan.ranking:
        if one.schedule.num_speculative_tokens and _way(one.schedule) in keys:
            found.setdefault((_way(one.schedule), one.schedule.num_speculative_tokens), one.schedule)
    return list(found.values())


def _way(schedule: Schedule) -> tuple[object, ...]:
    return (schedule.target_lane, schedule.draft_lane, schedule.method, schedule.root_source)
