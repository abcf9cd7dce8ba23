"""The cost of operations over several sequences.

Costs that do not depend on the context, above all reading the weights, count once for the total rows
(`costs.cost_model.Shared`). Each sequence adds the cost of its own rows and KV cache (`costs.cost_model.Own`).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from typing import Final, NamedTuple

from costs.contention import PairContention
from costs.cost_model import GroupCost, Part
from costs.durations import Calls, DurationTables
from costs.lane_messages import Messages
from costs.round_plan import DRAFT_STEP, DRAFT_STREAMS, LATER, STARTS, RoundPlan, StepKind
from costs.ticks import TICK_S, one_in_ticks
from decoding.errors import OutOfRangeError
from decoding.schedule import Schedule

_STEP: Final[Calls] = ((DRAFT_STEP, 1),)
_STREAMS: Final[Calls] = ((DRAFT_STREAMS, 1),)

_Rows = Sequence[int]
"""Rows of each sequence of a batch; 0 if it takes no part."""
_Places = Sequence[int]
"""Context of each sequence, as an index into the range of contexts."""


class Step(NamedTuple):
    """One step of a lane: seconds, total rows, calls with the rows of each sequence, and bandwidth drawn alone."""

    seconds: float
    rows: int
    works: Sequence[tuple[Calls, _Rows]]
    bytes_per_s: float


class RoundCosts:
    """The costs of the operations of a schedule's rounds, for several sequences at once."""

    def __init__(self, schedule: Schedule, plan: RoundPlan, tables: DurationTables) -> None:
        tables.require_positions(schedule, plan)
        profile, prices = tables.profile, tables.prices
        self.plan, self.messages = plan, Messages.of(schedule, profile)
        self.target_half_s, self.draft_half_s = (
            one_in_ticks(profile.lane(lane).dispatch_s / 2) for lane in (plan.target_lane, plan.draft_lane)
        )
        self.round_overhead_s = one_in_ticks(profile.round_overhead_s)
        self.first_step_s = one_in_ticks(prices.first_step_s(schedule))
        self.contention = PairContention.of(profile, plan.target_lane, plan.draft_lane)
        self._pass_overhead_s = [one_in_ticks(prices.pass_overhead_s(schedule, one.work)) for one in plan.segments]
        self._tables = tables
        added, is_apart = tables.drafting_calls(schedule, plan), plan.draft_lane != plan.target_lane
        self._segments: list[tuple[Calls, ...]] = [
            (tuple(one.calls.items()), *((added,) if added and not is_apart else ())) for one in plan.segments
        ]
        self._added = added if is_apart else ()
        self._demands = tables.demands(schedule, plan)
        self._step: Calls = ((plan.step, 1),) if plan.step else ()
        self._is_shared = self.contention.pool_bytes_per_s < inf
        self._branch_works = cache(self._works_of)

    def segment(self, segment: int, rows: _Rows, places: _Places) -> Step:
        """Return the target's operation for a segment of its layers."""
        step = self._pass(segment, rows, places)
        more_s = self._pass_overhead_s[segment]
        return step._replace(seconds=step.seconds + more_s) if more_s else step

    def step(self, rows: _Rows, stream_rows: _Rows, places: _Places) -> Step:
        """Return a step of rollouts; if any sequence has stream tokens, the step's rows are priced without features."""
        works = [(self._step, rows)] if not any(stream_rows) else [(_STEP, rows), (_STREAMS, stream_rows)]
        return self._priced(self.plan.draft_lane, works, places)

    def branch(self, kind: StepKind, roots: _Rows, places: _Places) -> Step:
        """Return a branch step of some kind; `roots`: branches of each sequence, or its tokens to read first."""
        works = [(calls, [each * count for count in roots]) for calls, each in self._branch_works(kind)]
        return self._priced(self.plan.draft_lane, works, places, self.first_step_s * (kind in STARTS))

    def _works_of(self, kind: StepKind) -> list[tuple[Calls, int]]:
        plan = self.plan
        if kind == "last_drafted":
            return [(self._step, 1)]
        return [
            (((part, 1),), each)
            for part, each in plan.calls_of(kind, 1 + plan.branch_guesses * (kind in LATER.values()))
        ]

    def _pass(self, segment: int, rows: _Rows, places: _Places) -> Step:
        added_s = self._priced(self.plan.draft_lane, [(self._added, rows)], places).seconds if self._added else 0.0
        works = [(calls, rows) for calls in self._segments[segment]]
        return self._priced(self.plan.target_lane, works, places, added_s)

    def _priced(self, lane: str, works: Sequence[tuple[Calls, _Rows]], places: _Places, more_s: float = 0.0) -> Step:
        """Return the step of a lane that makes the calls of `works`, each with its rows; `more_s` is added."""
        seconds, num_bytes = more_s, 0.0
        for calls, rows in works:
            if total := sum(rows):
                calls_s, calls_bytes = self._calls(lane, calls, rows, total, places)
                seconds, num_bytes = seconds + calls_s, num_bytes + calls_bytes
        return Step(seconds, sum(works[0][1]), works, num_bytes / seconds if seconds else 0.0)

    def _calls(self, lane: str, calls: Calls, rows: _Rows, total: int, places: _Places) -> tuple[float, float]:
        """Return the seconds of consecutive calls, in whole ticks, and the bytes that they move.

        The bytes are 0 if the lanes share no memory.
        """
        if len(rows) == 1:
            seconds = self._tables.times_s(lane, calls, total)[places[0]]
            return seconds, self._tables.traffics(lane, calls, total)[places[0]] if self._is_shared else 0.0
        counts = {*rows}
        places_by_rows: dict[int, _Places] = {rows[0]: places}
        if len(counts) > 1:
            placed = list(zip(places, rows, strict=True))
            places_by_rows = {count: [at for at, own in placed if own == count] for count in counts - {0}}
        seconds = num_bytes = 0.0
        for part, count in calls:
            call_s, call_bytes = self._call(lane, part, total, places_by_rows)
            seconds, num_bytes = seconds + count * call_s, num_bytes + count * call_bytes
        return max(one_in_ticks(seconds), TICK_S), num_bytes  # at least a tick where tables fall with the context

    def _call(self, lane: str, part: Part, total: int, places_by_rows: Mapping[int, _Places]) -> tuple[float, float]:
        """Return the seconds and the bytes of a call over rows of several sequences.

        The most expensive sequence's own cost overlaps with the shared cost (`costs.cost_model.Own`); others add
        theirs.
        """
        num_bytes, reading_s, computing_s, least_s = self._tables.shared(lane, part, total)
        all_s, one = 0.0, (0.0, 0.0, 0.0)
        for rows, places in places_by_rows.items():
            own_bytes, own_reading_s, own_computing_s, own_s = self._tables.own(lane, part, rows)
            if not own_s:
                continue
            all_s, longest = all_s + sum([own_s[at] for at in places]), max(places)
            one = max(one, (own_s[longest], own_reading_s[longest], own_computing_s[longest]))
            if self._is_shared:
                num_bytes += sum([own_bytes[at] for at in places])
        with_one_s = max(reading_s + one[1], computing_s + one[2])
        return max(with_one_s + (all_s - one[0]), least_s), num_bytes

    def collectives_s(self, lane: str, step: Step) -> tuple[float, ...]:
        """Return the seconds of each collective in a step of a lane; empty for a single device."""
        cost = self._tables.cost(lane)
        if not isinstance(cost, GroupCost):
            return ()
        calls = [(part, sum(rows), count) for parts, rows in step.works for part, count in parts]
        return tuple(seconds for part, rows, count in calls for seconds in cost.collectives_s(part, rows) * count)

    def check(self, num_sequences: int) -> None:
        """Raise `OutOfRangeError` if a lane has no cost for the rows of `num_sequences` with full windows."""
        for lane, part, rows in self._demands:
            if reason := self._tables.missing_part(lane, part, rows * num_sequences):
                raise OutOfRangeError(reason)

    def least_s(self, schedule: Schedule, num_sequences: int) -> float:
        """Return a lower bound of the seconds of a round in which all sequences have a window."""
        plan, places, width = self.plan, [0] * num_sequences, self.plan.widths[0]
        segments = range(len(plan.segments)) if schedule.uses_exit else (0,)
        verify_s = 2 * self.target_half_s + self.round_overhead_s
        verify_s += sum(self._pass(one, [width + 1] * num_sequences, places).seconds for one in segments)
        if plan.step is None or plan.streams:
            return verify_s
        step_s = self.step([1] * num_sequences, (), places).seconds
        num_steps = schedule.fewest_draft_steps if schedule.traits.has_draft_model else 1
        drafting_s = 2 * self.draft_half_s + num_steps * step_s
        return max(verify_s, drafting_s) if schedule.traits.overlaps else verify_s + drafting_s
