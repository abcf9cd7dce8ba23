"""`Durations` of schedules on a profile: the tables of its lanes, summed up as `costs.round_plan` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from costs.contention import PairContention, Slowdown
from costs.cost_model import Floats, LaneCost, Part, PartFacts
from costs.crossings import Messages
from costs.durations import Durations
from costs.group_cost import Collectives
from costs.paces import paced
from costs.prefill import PrefillTimes
from costs.prices import Prices
from costs.round_plan import DRAFT_STEP, DRAFT_STREAMS, Operation, RoundPlan, RoundShape, StepKind
from costs.ticks import one_in_ticks, work_in_ticks
from decoding.errors import ConfigError, ProfileError
from decoding.schedule import Schedule
from hwprofiles.bounds import LONGEST_S, MOST_SLOWDOWN
from hwprofiles.profile import Profile

MOST_PAIRS = 2048
"""So many slowdowns are kept: schedules that share one are asked for soon after each other."""


class DurationTables:
    """Durations of any schedule on one profile over one range of contexts; every part is looked up once."""

    def __init__(self, profile: Profile, contexts: range, costs: Mapping[str, LaneCost] | None = None) -> None:
        """`costs` replaces the measured cost of the lanes that it names."""
        self.profile = profile
        self.prices = Prices(profile, costs)
        self._contexts = np.arange(contexts.start, contexts.stop, dtype=np.float64)
        self._first_context = contexts.start
        self._costs = self.prices.costs
        self.prefill = PrefillTimes(profile, self._costs)
        self._calls: dict[tuple[str, Part, int], Floats] = {}
        self._works: dict[tuple[str, tuple[tuple[Part, int], ...], int], Floats] = {}
        self._spreads: dict[tuple[str, tuple[tuple[Part, int, int], ...]], float] = {}
        self._missing: dict[tuple[str, Part, int], str | None] = {}
        self._rollouts: dict[tuple[object, ...], tuple[Floats, tuple[Floats, ...], Floats]] = {}
        self._facts_of: dict[tuple[str, Part], PartFacts] = {}
        self._messages: dict[tuple[object, ...], Messages] = {}
        self._pairs: dict[tuple[object, ...], Slowdown] = {}
        self._shares_memory: dict[tuple[str, str], bool] = {}

    def cost(self, lane: str) -> LaneCost:
        """What calls cost on a lane, collectives of a group included.

        Raises:
            ProfileError: there is no such lane.
        """
        return self._costs[self.profile.lane(lane).name]

    def missing(self, schedule: Schedule, shape: RoundShape) -> str | None:
        """What `durations` would refuse the schedule for; None if it would not."""
        try:
            for demand in RoundPlan.of(schedule, shape, self.profile.num_layers).demands():
                if reason := self._missing_part(*demand):
                    return reason
        except (ConfigError, ProfileError) as error:
            return str(error)
        return None

    def _missing_part(self, lane: str, part: Part, rows: int) -> str | None:
        key = (lane, part, rows)
        if key not in self._missing:
            self.profile.lane(lane)
            self._missing[key] = self._costs[lane].missing(part, rows, self._contexts)
        return self._missing[key]

    def durations(self, schedule: Schedule, shape: RoundShape) -> Durations:
        """The durations of `schedule`, whose rounds have a given shape; what is `missing` is refused."""
        plan = RoundPlan.of(schedule, shape, self.profile.num_layers)
        target, draft = plan.target_lane, plan.draft_lane
        for lane in (target, draft):
            self.profile.lane(lane)
        streams = {plan.streams: 1} if plan.streams else {}
        streams_s = [self._work_s(target, streams, operation.rows) for operation in plan.segments]
        segments_s = [
            self._work_s(target, operation.calls, operation.rows) + more
            for operation, more in zip(plan.segments, streams_s, strict=True)
        ]
        more_s = [self.prices.pass_more_s(schedule, operation.work) for operation in plan.segments]
        segments_s = [
            work_in_ticks(seconds + more) if more else seconds for seconds, more in zip(segments_s, more_s, strict=True)
        ]
        parts = [(target, part) for operation in plan.segments for part in operation.calls]
        drafting = [self._facts(draft, part) for part in plan.drafting_parts]
        if plan.most_rows != plan.step_rows:
            for kind, count in plan.most_rows.items():
                self._branch_s(plan, kind, count)  # refused where it was not measured, whatever texts come to
        step_s = {kind: self._branch_s(plan, kind, count) for kind, count in plan.step_rows.items()}
        catch_up_s, later_s, rollout_s = self._rollout_s(schedule, plan)
        durations = Durations(
            plan=plan,
            first_context=self._first_context,
            segments_s=tuple(segments_s),
            streams_s=tuple(streams_s),
            step_s=step_s,
            catch_up_s=catch_up_s,
            later_s=later_s,
            rollout_s=rollout_s,
            guessing_s=self._guessing_s(plan),
            slowdowns=tuple(
                {kind: self._slowdown(plan, operation, kind) for kind in plan.step_rows} for operation in plan.segments
            ),
            target_half_s=self._half_dispatch_s(target),
            draft_half_s=self._half_dispatch_s(draft),
            round_overhead_s=one_in_ticks(self.prices.round_overhead_s(schedule)),
            messages=self._messages_of(schedule),
            collectives=Collectives.of(plan, self._costs),
            target_relative_error=self._spread(target, plan.segments),
            draft_relative_error=max((one.relative_error for one in drafting), default=0.0),
            features_relative_error=self.prices.features(schedule).relative_error,
            branch_relative_error=(
                self.profile.lane(draft).overhead("branch_step").relative_error if schedule.traits.overlaps else 0.0
            ),
            sources=tuple(dict.fromkeys(one.source for one in [*(self._facts(*part) for part in parts), *drafting])),
        )
        spread = self.profile.lane(draft).pace_spread if schedule.traits.overlaps else 0.0
        return paced(durations, spread) if spread else durations

    def _step_s(self, plan: RoundPlan, rows: int) -> Floats:
        """A step of whatever drafts in a lane."""
        assert plan.step is not None, "a step of a draft that is not there"
        return self._work_s(plan.draft_lane, {plan.step: 1}, rows)

    def _rollout_s(self, schedule: Schedule, plan: RoundPlan) -> tuple[Floats, tuple[Floats, ...], Floats]:
        """First steps of rollouts, later ones, and all of them together: `catch_up_s`, `later_s` and `rollout_s`."""
        key = plan.draft_lane, plan.step, plan.first_rows, plan.later_rows
        if key not in self._rollouts:
            start_s = self.prices.rollout_start_s(schedule)
            first_s = np.array([work_in_ticks(self._step_s(plan, count) + start_s) for count in plan.first_rows])
            later_s = tuple(self._step_s(plan, count) for count in plan.later_rows)
            self._rollouts[key] = first_s, later_s, first_s + sum(later_s)
        return self._rollouts[key]

    def _branch_s(self, plan: RoundPlan, kind: StepKind, rows: int) -> Floats:
        """A step of branches, or one that drafts a token for one."""
        first, *others = (self._work_s(plan.draft_lane, {part: 1}, count) for part, count in plan.calls_of(kind, rows))
        seconds = sum(others, start=first)
        return seconds if kind == "one_row" else work_in_ticks(seconds + self.prices.branch_step_s(plan.draft_lane))

    def _guessing_s(self, plan: RoundPlan) -> Floats:
        """Steps of drafted tokens, which have no features: one row of the draft for each guess and one more."""
        if not plan.num_streams:
            return np.zeros((0, len(self._contexts)))
        more = [
            self._work_s(plan.draft_lane, {DRAFT_STEP: 1}, count + 1)
            + self._work_s(plan.draft_lane, {DRAFT_STREAMS: 1}, count)
            for count in range(1, plan.num_streams + 1)
        ]
        return np.array([self._step_s(plan, 1), *more])

    def _slowdown(self, plan: RoundPlan, operation: Operation, kind: StepKind) -> Slowdown:
        """What an operation of the target and a draft step cost each other: alike, unless lanes share a memory."""
        rows, lanes = plan.step_rows[kind], (plan.target_lane, plan.draft_lane)
        if lanes not in self._shares_memory:
            self._shares_memory[lanes] = self.profile.pool_bytes_per_s(*lanes) is not None
        if not self._shares_memory[lanes]:
            return self._pair(lanes, (), lambda: (np.zeros(1), np.zeros(1)))
        calls, target_calls = plan.calls_of(kind, rows), tuple(operation.calls.items())

        def wanted() -> tuple[Floats, Floats]:
            target_bytes = sum(count * self._facts(lanes[0], part).bytes_per_call for part, count in target_calls)
            draft_bytes = sum(self._facts(lanes[1], part).bytes_per_call for part, _ in calls)
            target_s = self._work_s(lanes[0], operation.calls, operation.rows)
            return target_bytes / target_s, draft_bytes / self._branch_s(plan, kind, rows)

        return self._pair(lanes, (target_calls, operation.rows, calls), wanted)

    def _pair(
        self, lanes: tuple[str, str], what: tuple[object, ...], wanted: Callable[[], tuple[Floats, Floats]]
    ) -> Slowdown:
        """What two lanes cost each other that want so much bandwidth for what they do."""
        key = (lanes, what)
        if key not in self._pairs:
            if len(self._pairs) >= MOST_PAIRS:
                self._pairs.clear()
            slowdown = PairContention.of(self.profile, *lanes).slowdown(*wanted())
            for times in slowdown:
                _require(times, MOST_SLOWDOWN, "times as long, while lanes {!r} and {!r} both compute".format(*lanes))
            self._pairs[key] = slowdown
        return self._pairs[key]

    def _work_s(self, lane: str, calls: Mapping[Part, int], rows: int) -> Floats:
        """So many calls of each part in a row; nothing for none."""
        key = (lane, tuple(calls.items()), rows)
        if key not in self._works:
            seconds = [count * self._call(lane, part, rows) for part, count in calls.items()]
            self._works[key] = work_in_ticks(np.sum(seconds, axis=0)) if seconds else np.zeros(len(self._contexts))
        return self._works[key]

    def _spread(self, lane: str, operations: Sequence[Operation]) -> float:
        """Relative error of the target's operations together, if every part errs the same way."""
        calls = tuple((part, count, one.rows) for one in operations for part, count in one.calls.items())
        if (lane, calls) not in self._spreads:
            seconds = [count * float(self._call(lane, part, rows).mean()) for part, count, rows in calls]
            errors = [self._facts(lane, part).relative_error for part, _, _ in calls]
            self._spreads[lane, calls] = float(np.average(errors, weights=seconds)) if sum(seconds) else 0.0
        return self._spreads[lane, calls]

    def _call(self, lane: str, part: Part, rows: int) -> Floats:
        key = (lane, part, rows)
        if key not in self._calls:
            seconds = self._costs[lane].seconds(part, rows, self._contexts)
            _require(seconds, LONGEST_S, f"seconds of {part} with {rows} rows on lane {lane!r}")
            self._calls[key] = seconds
        return self._calls[key]

    def _facts(self, lane: str, part: Part) -> PartFacts:
        key = (lane, part)
        if key not in self._facts_of:
            self._facts_of[key] = self._costs[lane].facts(part)
        return self._facts_of[key]

    def _messages_of(self, schedule: Schedule) -> Messages:
        key = Messages.key(schedule)
        if key not in self._messages:
            self._messages[key] = Messages.of(schedule, self.profile)
        return self._messages[key]

    def _half_dispatch_s(self, lane: str) -> float:
        return one_in_ticks(self.profile.lane(lane).dispatch_s / 2)


def _require(values: Floats, most: float, what: str) -> None:
    """Refuse what only a wrong number of the profile can come to, and what is no number."""
    if not (values.max() <= most and values.min() >= 0):
        msg = (
            f"by this profile it is {values.max():g} {what}: at most {most:g} are plausible, so a number in it is wrong"
        )
        raise ProfileError(msg)
