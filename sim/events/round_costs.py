"""What one call over several sequences costs: their rows add up, and each reads its own KV cache.

A cost model knows a call of so many rows over one context. What does not depend on the context (the weights, above all)
is paid once, for the sum of all rows; what a sequence's own context adds to the cost of its own rows is paid for each::

    cost(sum of rows, lowest context) + sum over sequences of (cost(its rows, its context) - cost(its rows, lowest))

With one sequence this is the cost model's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from costs.contention import PairContention
from costs.cost_model import Part
from costs.crossings import Messages
from costs.durations import DurationTables
from costs.group_cost import GroupCost
from costs.paces import paces
from costs.round_plan import DRAFT_STEP, DRAFT_STREAMS, RoundPlan, StepKind
from costs.ticks import TICK_S, one_in_ticks
from decoding.errors import OutOfRangeError
from decoding.schedule import Schedule

Rows = Sequence[int]
"""Rows of every sequence of a batch; 0 where one takes no part."""
Places = Sequence[int]
"""Every sequence's context, as an index into the range of contexts."""


class Step(NamedTuple):
    """One step of a lane: its seconds and rows, and what it calls, each with its rows and how many times."""

    seconds: float
    rows: int
    calls: tuple[tuple[Part, int, int], ...]


class CallCosts:
    """Seconds of calls over several sequences, on one profile over one range of contexts."""

    def __init__(self, tables: DurationTables, contexts: range) -> None:
        self.tables = tables
        self._contexts = np.arange(contexts.start, contexts.stop, dtype=np.float64)
        self._by_place: dict[tuple[str, Part, int], list[float]] = {}

    def seconds(self, lane: str, calls: Mapping[Part, int], rows: Rows, places: Places) -> float:
        """Seconds of so many calls of each part in a row, in whole ticks; nothing without rows.

        Raises:
            ProfileError: the lane has no cost for a part (`OutOfRangeError` where so many rows were not measured).
        """
        total = sum(rows)
        if not total:
            return 0.0
        lowest = min(places)
        seconds = 0.0
        for part, count in calls.items():
            one_s = self._times(lane, part, total)[lowest]
            for own in set(rows) if len(rows) > 1 else ():
                if own:
                    times_s = self._times(lane, part, own)
                    lowest_s = times_s[lowest]
                    one_s += sum([times_s[at] - lowest_s for at, num in zip(places, rows, strict=True) if num == own])
            seconds += count * one_s
        return max(one_in_ticks(seconds), TICK_S)

    def check(self, lane: str, part: Part, rows: int) -> None:
        """Raise `OutOfRangeError` if the lane has no cost for a call of so many rows in some context."""
        if reason := self.tables.cost(lane).missing(part, rows, self._contexts):
            raise OutOfRangeError(reason)

    def _times(self, lane: str, part: Part, rows: int) -> list[float]:
        key = lane, part, rows
        if key not in self._by_place:
            self._by_place[key] = self.tables.cost(lane).seconds(part, rows, self._contexts).tolist()
        return self._by_place[key]


class RoundCosts:
    """What the operations of a schedule's rounds cost that several sequences go through together.

    `paces` are how many times as long drafting takes in rounds in turn, see `costs.paces`.
    """

    def __init__(self, schedule: Schedule, plan: RoundPlan, calls: CallCosts) -> None:
        tables = calls.tables
        profile, prices = tables.profile, tables.prices
        self.plan, self.messages = plan, Messages.of(schedule, profile)
        self.target_half_s, self.draft_half_s = (
            one_in_ticks(profile.lane(lane).dispatch_s / 2) for lane in (plan.target_lane, plan.draft_lane)
        )
        self.round_overhead_s = one_in_ticks(prices.round_overhead_s(schedule))
        self.rollout_start_s = prices.rollout_start_s(schedule)
        spread = profile.lane(plan.draft_lane).pace_spread if schedule.traits.overlaps else 0.0
        self.paces = paces(spread) if spread else (1.0,)
        self._pass_more_s = [one_in_ticks(prices.pass_more_s(schedule, one.work)) for one in plan.segments]
        self._branch_step_s = one_in_ticks(prices.branch_step_s(plan.draft_lane))
        self._calls = calls
        self._known_bytes: dict[tuple[str, tuple[tuple[Part, int], ...]], float] = {}
        self._pair = PairContention.of(profile, plan.target_lane, plan.draft_lane)

    def segment(self, segment: int, rows: Rows, places: Places) -> Step:
        """An operation of the target, without what its pass takes more (`pass_more_s`)."""
        plan, calls = self.plan, dict(self.plan.segments[segment].calls)
        seconds = self._calls.seconds(plan.target_lane, calls, rows, places)
        if plan.streams:
            calls[plan.streams] = 1
            seconds += self._calls.seconds(plan.target_lane, {plan.streams: 1}, rows, places)
        total = sum(rows)
        return Step(seconds, total, tuple((part, total, count) for part, count in calls.items()))

    def pass_more_s(self, segment: int) -> float:
        """What that takes more."""
        return self._pass_more_s[segment]

    def step(self, rows: Rows, stream_rows: Rows, places: Places) -> Step:
        """A step of rollouts; with stream tokens of anybody all rows are those of a draft without features."""
        assert self.plan.step is not None, "a step of a draft that is not there"
        if not any(stream_rows):
            return self._draft({self.plan.step: rows}, places)
        return self._draft({DRAFT_STEP: rows, DRAFT_STREAMS: stream_rows}, places)

    def branch(self, kind: StepKind, roots: Rows, places: Places) -> Step:
        """A step of branches with so many roots, or tokens to read first."""
        step = self._draft({part: [each * count for count in roots] for part, each in self._branch_calls(kind)}, places)
        return step._replace(seconds=step.seconds + self._branch_step_s)

    def _branch_calls(self, kind: StepKind) -> tuple[tuple[Part, int], ...]:
        """The calls of a step of branches, with their rows for every root."""
        plan = self.plan
        if kind == "last_drafted" and plan.step is not None:
            return ((plan.step, 1),)
        return plan.calls_of(kind, 1 + plan.branch_guesses * kind.endswith("guesses"))

    def _draft(self, calls: Mapping[Part, Rows], places: Places) -> Step:
        lane = self.plan.draft_lane
        seconds = sum(self._calls.seconds(lane, {part: 1}, rows, places) for part, rows in calls.items())
        totals = [(part, sum(rows), 1) for part, rows in calls.items()]
        return Step(seconds, totals[0][1], tuple(totals))

    def collectives_s(self, lane: str, step: Step) -> tuple[float, ...]:
        """How long the devices of a lane wait for each other in a step, every time; never where it is one device."""
        cost = self._calls.tables.cost(lane)
        if not isinstance(cost, GroupCost):
            return ()
        return tuple(seconds for part, rows, count in step.calls for seconds in cost.collectives_s(part, rows) * count)

    def check(self, num_sequences: int) -> None:
        """Raise `OutOfRangeError` if a lane has no cost for the rows of so many sequences that all have a window."""
        for lane, part, rows in self.plan.demands():
            self._calls.check(lane, part, rows * num_sequences)

    def fewest_s(self, schedule: Schedule, num_sequences: int) -> float:
        """The least that a round of so many sequences takes in which all have a window."""
        plan, places, width = self.plan, [0] * num_sequences, self.plan.widths[0]
        segments = range(len(plan.segments)) if schedule.uses_exit else (0,)
        verify_s = 2 * self.target_half_s + self.round_overhead_s
        verify_s += sum(self.segment(one, [width + 1] * num_sequences, places).seconds for one in segments)
        if plan.step is None or plan.streams:
            return verify_s
        step_s = self._draft({plan.step: [1] * num_sequences}, places).seconds
        num_steps = schedule.fewest_draft_steps if schedule.traits.has_draft_model else 1
        drafting_s = 2 * self.draft_half_s + num_steps * step_s
        return max(verify_s, drafting_s) if schedule.traits.overlaps else verify_s + drafting_s

    def slowdown(self, segment: int, kind: StepKind, target_s: float, draft_s: float) -> tuple[float, float]:
        """What an operation of the target and a draft step cost each other, by the traffic of one sequence."""
        if self._pair.pool_bytes_per_s == inf:
            return self._pair.target_slowdown, self._pair.draft_slowdown
        target_bytes = self._bytes(self.plan.target_lane, tuple(self.plan.segments[segment].calls.items()))
        draft_bytes = self._bytes(self.plan.draft_lane, tuple((part, 1) for part, _ in self._branch_calls(kind)))
        pair, pool = self._pair, self._pair.pool_bytes_per_s
        wants = target_bytes / target_s / pair.target_slowdown, draft_bytes / draft_s / pair.draft_slowdown
        most = max(pool / 2, pool - min(wants))  # the max-min fair level of two
        return pair.target_slowdown * max(1.0, wants[0] / most), pair.draft_slowdown * max(1.0, wants[1] / most)

    def _bytes(self, lane: str, calls: tuple[tuple[Part, int], ...]) -> float:
        if (lane, calls) not in self._known_bytes:
            cost = self._calls.tables.cost(lane)
            self._known_bytes[lane, calls] = sum(count * cost.facts(part).bytes_per_call for part, count in calls)
        return self._known_bytes[lane, calls]
