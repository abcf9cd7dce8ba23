"""The durations of a schedule's operations by context, for both simulators (events and arrays).

They add up the calls that `costs.round_plan` lists, by the lanes' latency tables. The context of an operation is the
number of tokens in the target's KV cache: all committed tokens (prompt and new ones) but the last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from costs.contention import PairContention, Slowdown
from costs.cost_model import Floats, LaneCost, Part, PartFacts, Shared, traffic
from costs.lane_messages import Messages
from costs.prefill import PrefillTimes
from costs.prices import Prices
from costs.round_plan import DRAFT_READS, DRAFT_STEP, DRAFT_STREAMS, STARTS, Operation, RoundPlan, RoundShape, StepKind
from costs.ticks import one_in_ticks, work_in_ticks
from decoding.errors import ConfigError, OutOfRangeError, ProfileError
from decoding.schedule import Schedule
from hwprofiles.bounds import LONGEST_S, MOST_SLOWDOWN
from hwprofiles.profile import Profile

MOST_PAIRS = 2048
"""Number of cached slowdowns; schedules that share one come soon after each other."""

Calls = tuple[tuple[Part, int], ...]
"""Parts, each with its number of calls or its number of rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """All times of a schedule, as arrays over contexts.

    Attributes:
        segments_s: times of the target's operations, in the order of `plan.segments`.
        drafting_s: the seconds of each of `segments_s` that are drafting: streams, or rows that the draft model reads
            again.
        step_s: times of a draft model's steps by kind.
        catch_up_s: [n] is the first step of a rollout that reads n committed tokens before the last one.
        rollout_s: [n] is the whole of such a rollout.
        guessing_s: [n] is a step in which the draft's streams make n guesses; empty without streams.
        slowdowns: for each segment, how much it and each kind of branch step slow each other; arrays of one entry if
            the lanes share no memory. Empty if target and draft take turns.
        target_half_s, draft_half_s: half a dispatch, which precedes and follows each operation.
        round_overhead_s: the driver's time between a verdict and the next operation.
    """

    plan: RoundPlan
    segments_s: tuple[Floats, ...]
    drafting_s: tuple[Floats, ...]
    step_s: Mapping[StepKind, Floats]
    catch_up_s: Floats
    rollout_s: Floats
    guessing_s: Floats
    slowdowns: tuple[Mapping[StepKind, Slowdown], ...]
    target_half_s: float
    draft_half_s: float
    round_overhead_s: float
    messages: Messages


class DurationFacts(NamedTuple):
    """The relative errors and the sources of a schedule's times.

    Attributes:
        plan: what the schedule's rounds compute.
        target_relative_error, draft_relative_error: half-width of the 90 % interval of each lane's times. The errors of
            the target's parts are assumed to be fully correlated, so theirs is the mean weighted by time.
        features_relative_error: additional error of passes that return hidden states; 0 for other passes.
        sources: the sources of all times, without repeats.
    """

    plan: RoundPlan
    target_relative_error: float
    draft_relative_error: float
    features_relative_error: float
    sources: tuple[str, ...]


class DurationTables:
    """Durations of any schedule on one profile over one range of contexts; the times of each part are cached."""

    def __init__(self, profile: Profile, contexts: range, costs: Mapping[str, LaneCost] | None = None) -> None:
        """Take a profile; `costs` replaces the measured costs of the lanes that are its keys."""
        self.profile, self.prices, self._given = profile, Prices(profile, costs), costs
        self._costs = self.prices.costs
        self.prefill = PrefillTimes(profile, self._costs)
        self._range = contexts
        self._contexts = np.arange(contexts.start, contexts.stop, dtype=np.float64)
        self.missing_part = cache(self._why_missing)
        self._call_s = cache(self._seconds)
        self.work_s = cache(self._sum_s)
        self.traffic = cache(self._bytes_of)
        self.traffics: Callable[[str, Calls, int], list[float]] = cache(lambda *work: self.traffic(*work).tolist())
        self.times_s: Callable[[str, Calls, int], list[float]] = cache(lambda *work: self.work_s(*work).tolist())
        self.shared, self.own = cache(self._shared_by), cache(self._own_of)
        self._rollout_s = cache(self._rollout_times)
        self._spread = cache(self._error_of)
        self._facts: Callable[[str, Part], PartFacts] = cache(lambda lane, part: self._costs[lane].facts(part))
        self._pool_bytes_per_s = cache(profile.pool_bytes_per_s)
        self._pair = lru_cache(MOST_PAIRS)(self._slowdown_of)

    def over(self, contexts: range) -> "DurationTables":
        """Return the tables over another range of contexts."""
        return self if contexts == self._range else DurationTables(self.profile, contexts, self._given)

    def cost(self, lane: str) -> LaneCost:
        """Return the cost model of a lane, collectives included; raise `ProfileError` if there is no such lane."""
        return self._costs[self.profile.lane(lane).name]

    def missing(self, schedule: Schedule, shape: RoundShape) -> str | None:
        """Return why `durations` would raise, or None."""
        try:
            plan = RoundPlan.of(schedule, shape, self.profile.num_layers)
            missing = filter(None, (self.missing_part(*demand) for demand in self.demands(schedule, plan)))
            return next(missing, None) or self._beyond_positions(schedule, plan)
        except (ConfigError, ProfileError) as error:
            return str(error)

    def require_positions(self, schedule: Schedule, plan: RoundPlan) -> None:
        """Raise `OutOfRangeError` if the last window of a text needs more positions than a model has."""
        if reason := self._beyond_positions(schedule, plan):
            raise OutOfRangeError(reason)

    def _beyond_positions(self, schedule: Schedule, plan: RoundPlan) -> str | None:
        """Return the message of `require_positions`, or None. Tree paths, and sequences of a batch, share positions."""
        longest = self._range[-1] + schedule.num_speculative_tokens + 1
        for lane, part, _ in plan.demands:
            facts = self._facts(lane, part)
            if longest > facts.most_positions:
                return f"{part}: {longest} positions, and {facts.most_positions:.0f} there are ({facts.source})"
        return None

    def demands(self, schedule: Schedule, plan: RoundPlan) -> tuple[tuple[str, Part, int], ...]:
        """Return all calls that rounds can make: lane, part and rows."""
        added = self.drafting_calls(schedule, plan)
        return *plan.demands, *((plan.draft_lane, part, one.rows) for one in plan.segments for part, _ in added)

    def drafting_calls(self, schedule: Schedule, plan: RoundPlan) -> Calls:
        """Return the calls on the draft lane that drafting adds to each operation of the target, of the same rows."""
        if plan.streams:
            return ((plan.streams, 1),)
        is_in_turn = schedule.traits.has_draft_model and not schedule.traits.overlaps
        return ((DRAFT_READS, 1),) if is_in_turn and not self.missing_part(plan.draft_lane, DRAFT_READS, 1) else ()

    def durations(self, schedule: Schedule, shape: RoundShape) -> Durations:
        """Return the durations of `schedule`, whose rounds have this shape; raise an error if one is `missing`."""
        plan, profile = RoundPlan.of(schedule, shape, self.profile.num_layers), self.profile
        target, draft = profile.lane(plan.target_lane), profile.lane(plan.draft_lane)
        self.require_positions(schedule, plan)
        calls = self.drafting_calls(schedule, plan)
        drafting_s = [self.work_s(draft.name, calls, operation.rows) for operation in plan.segments]
        segments_s = tuple(
            self._segment_s(schedule, target.name, operation, own_s)
            for operation, own_s in zip(plan.segments, drafting_s, strict=True)
        )
        if plan.most_rows != plan.step_rows:
            for kind, count in plan.most_rows.items():
                self._branch_s(plan, kind, count, 0.0)  # raises an error if the widest steps were not measured
        start_s = self.prices.first_step_s(schedule)
        catch_up_s, rollout_s = self._rollout_s(draft.name, plan.step, plan.first_rows, plan.later_rows, start_s)
        return Durations(
            plan=plan,
            segments_s=segments_s,
            drafting_s=tuple(drafting_s),
            step_s={kind: self._branch_s(plan, kind, count, start_s) for kind, count in plan.step_rows.items()},
            catch_up_s=catch_up_s,
            rollout_s=rollout_s,
            guessing_s=self._guessing_s(plan),
            slowdowns=tuple(
                {kind: self._slowdown(plan, operation, kind, start_s) for kind in plan.step_rows if kind != "one_row"}
                for operation in plan.segments
                if schedule.traits.overlaps
            ),
            target_half_s=one_in_ticks(target.dispatch_s / 2),
            draft_half_s=one_in_ticks(draft.dispatch_s / 2),
            round_overhead_s=one_in_ticks(profile.round_overhead_s),
            messages=Messages.of(schedule, profile),
        )

    def facts(self, schedule: Schedule, shape: RoundShape) -> DurationFacts:
        """Return errors and sources of a schedule's durations; the arguments are those of `durations`."""
        plan = RoundPlan.of(schedule, shape, self.profile.num_layers)
        works = tuple((tuple(one.calls.items()), one.rows) for one in plan.segments)
        added = [part for part, _ in self.drafting_calls(schedule, plan) if part is not plan.streams]
        drafting = [self._facts(plan.draft_lane, part) for part in (*plan.drafting_parts, *added)]
        facts = [*(self._facts(plan.target_lane, part) for calls, _ in works for part, _ in calls), *drafting]
        return DurationFacts(
            plan=plan,
            target_relative_error=self._spread(plan.target_lane, works),
            draft_relative_error=max((one.relative_error for one in drafting), default=0.0),
            features_relative_error=self.prices.features(schedule).relative_error,
            sources=tuple(dict.fromkeys(one.source for one in facts)),
        )

    def _segment_s(self, schedule: Schedule, lane: str, operation: Operation, drafting_s: Floats) -> Floats:
        """Return the seconds of an operation of the target, with its drafting and its overhead."""
        seconds = self.work_s(lane, tuple(operation.calls.items()), operation.rows) + drafting_s
        overhead_s = self.prices.pass_overhead_s(schedule, operation.work)
        return work_in_ticks(seconds + overhead_s) if overhead_s else seconds

    def _why_missing(self, lane: str, part: Part, rows: int) -> str | None:
        return self.cost(lane).missing(part, rows, self._contexts)

    def _rollout_times(
        self, lane: str, step: Part | None, first_rows: Sequence[int], later_rows: Sequence[int], start_s: float
    ) -> tuple[Floats, Floats]:
        """Return `catch_up_s` and `rollout_s` of `Durations`."""

        def step_s(rows: int) -> Floats:
            assert step is not None, "a step without a drafter"
            return self.work_s(lane, ((step, 1),), rows)

        first_s = np.array([work_in_ticks(step_s(count) + start_s) for count in first_rows])
        return first_s, first_s + sum(map(step_s, later_rows))

    def _branch_s(self, plan: RoundPlan, kind: StepKind, rows: int, start_s: float) -> Floats:
        """Return the seconds of a step of branches."""
        return self._draft_s(plan.draft_lane, plan.calls_of(kind, rows), start_s * (kind in STARTS))

    def _guessing_s(self, plan: RoundPlan) -> Floats:
        """Return `guessing_s` of `Durations`: a step with n guesses has n + 1 rows of the draft model."""
        if not plan.num_streams:
            return np.zeros((0, len(self._contexts)))
        assert plan.step is not None, "streams of a draft that is not there"
        guessing = [((DRAFT_STEP, count + 1), (DRAFT_STREAMS, count)) for count in range(1, plan.num_streams + 1)]
        return np.array([self._draft_s(plan.draft_lane, calls) for calls in (((plan.step, 1),), *guessing)])

    def _draft_s(self, lane: str, calls: Calls, more_s: float = 0.0) -> Floats:
        """Return the seconds of one call of each part, with its rows, plus `more_s`."""
        first, *others = (self.work_s(lane, ((part, 1),), rows) for part, rows in calls)
        seconds = sum(others, start=first)
        return work_in_ticks(seconds + more_s) if more_s else seconds

    def _slowdown(self, plan: RoundPlan, operation: Operation, kind: StepKind, start_s: float) -> Slowdown:
        """Return how much an operation of the target and a step of branches slow each other."""
        lanes = plan.target_lane, plan.draft_lane
        if self._pool_bytes_per_s(*lanes) is None:
            return self._pair(*lanes, (), 0, (), 0.0)
        calls, more_s = plan.calls_of(kind, plan.step_rows[kind]), start_s * (kind in STARTS)
        return self._pair(*lanes, tuple(operation.calls.items()), operation.rows, calls, more_s)

    def _slowdown_of(
        self, target: str, draft: str, target_calls: Calls, rows: int, draft_calls: Calls, more_s: float
    ) -> Slowdown:
        """Return how much two lanes slow each other, by the bandwidth that their calls use (0 without calls)."""
        wanted = np.zeros(1), np.zeros(1)
        if target_calls:
            target_bytes = self.traffic(target, target_calls, rows)
            draft_bytes = sum(self.traffic(draft, ((part, 1),), draft_rows) for part, draft_rows in draft_calls)
            target_s, draft_s = self.work_s(target, target_calls, rows), self._draft_s(draft, draft_calls, more_s)
            wanted = target_bytes / target_s, draft_bytes / draft_s
        slowdown = PairContention.of(self.profile, target, draft).slowdown(*wanted)
        for times in slowdown:
            _require(times, MOST_SLOWDOWN, f"times the latency while lanes {target!r} and {draft!r} both compute")
        return slowdown

    def _sum_s(self, lane: str, calls: Calls, rows: int) -> Floats:
        """Return the seconds of a number of calls of each part; zero without calls."""
        seconds = [count * self._call_s(lane, part, rows) for part, count in calls]
        return work_in_ticks(np.sum(seconds, axis=0)) if seconds else np.zeros(len(self._contexts))

    def _bytes_of(self, lane: str, calls: Calls, rows: int) -> Floats:
        """Return the bytes that a number of calls of each part move at each context."""
        moved = [count * traffic(self._costs[lane], part, rows, self._contexts) for part, count in calls]
        return np.sum(moved, axis=0) if moved else np.zeros(len(self._contexts))

    def _seconds(self, lane: str, part: Part, rows: int) -> Floats:
        seconds = self._costs[lane].seconds(part, rows, self._contexts)
        _require(seconds, LONGEST_S, f"seconds of {part} with {rows} rows on lane {lane!r}")
        return seconds

    def _shared_by(self, lane: str, part: Part, rows: int) -> Shared:
        """Return what a call of `rows` rows of several sequences costs once; raise `OutOfRangeError` if unmeasured."""
        if reason := self.missing_part(lane, part, rows):
            raise OutOfRangeError(reason)
        return self.cost(lane).shared(part, rows)

    def _own_of(self, lane: str, part: Part, rows: int) -> tuple[list[float], ...]:
        """Return the fields of `Own` and the longer of its two times, by context; empty lists if all are zero."""
        own = self._costs[lane].own(part, rows, self._contexts)
        amounts = *own, np.maximum(own.reading_s, own.computing_s)
        return tuple(one.tolist() for one in amounts) if any(one.any() for one in amounts) else ([],) * len(amounts)

    def _error_of(self, lane: str, works: tuple[tuple[Calls, int], ...]) -> float:
        """Return the mean relative error of the calls, weighted by their times."""
        calls = [(part, count, rows) for of_operation, rows in works for part, count in of_operation]
        seconds = [count * float(self._call_s(lane, part, rows).mean()) for part, count, rows in calls]
        errors = [self._facts(lane, part).relative_error for part, _, _ in calls]
        return float(np.average(errors, weights=seconds)) if sum(seconds) else 0.0


def _require(values: Floats, most: float, what: str) -> None:
    """Raise `ProfileError` for implausible values, which must come from a wrong number in the profile."""
    if not (values.max() <= most and values.min() >= 0):
        raise ProfileError(
            f"this profile gives {values.max():g} {what}: at most {most:g} are plausible, so a number in it is wrong"
        )
