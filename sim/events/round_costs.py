"""What one call over several sequences costs: their rows add up, and each reads its own KV cache.

What does not depend on the context (reading the weights, above all) counts once, for the sum of all rows. On it comes
what each sequence adds by its own rows and context, see `costs.cost_model.Own`.
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
"""Rows of every sequence of a batch; 0 where one takes no part."""
_Places = Sequence[int]
"""Every sequence's context, as an index into the range of contexts."""


class Step(NamedTuple):
    """One step of a lane: seconds, rows, its calls with each sequence's rows, and the bandwidth that it wants."""

    seconds: float
    rows: int
    works: Sequence[tuple[Calls, _Rows]]
    bytes_per_s: float


class RoundCosts:
    """What the operations of a schedule's rounds cost with several sequences at once."""

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
        """Return an operation of the target."""
        step = self._pass(segment, rows, places)
        more_s = self._pass_overhead_s[segment]
        return step._replace(seconds=step.seconds + more_s) if more_s else step

    def step(self, rows: _Rows, stream_rows: _Rows, places: _Places) -> Step:
        """Return a step of rollouts; with stream tokens of any sequence all rows are of a draft without features."""
        works = [(self._step, rows)] if not any(stream_rows) else [(_STEP, rows), (_STREAMS, stream_rows)]
        return self._priced(self.plan.draft_lane, works, places)

    def branch(self, kind: StepKind, roots: _Rows, places: _Places) -> Step:
        """Return a step of branches with these roots, or tokens to read first."""
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
        """Return a step of a lane that does these works, each with its own rows, `more_s` included."""
        seconds, num_bytes = more_s, 0.0
        for calls, rows in works:
            if total := sum(rows):
                calls_s, calls_bytes = self._calls(lane, calls, rows, total, places)
                seconds, num_bytes = seconds + calls_s, num_bytes + calls_bytes
        return Step(seconds, sum(works[0][1]), works, num_bytes / seconds if seconds else 0.0)

    def _calls(self, lane: str, calls: Calls, rows: _Rows, total: int, places: _Places) -> tuple[float, float]:
        """Return the seconds of all calls, one after another, in whole ticks, and the bytes that they move.

        The bytes are left out where lanes share no memory.
        """
        if len(rows) == 1:
            seconds = self._tables.times_s(lane, calls, total)[places[0]]
            return seconds, self._tables.traffics(lane, calls, total)[places[0]] if self._is_shared else 0.0
        counts = {*rows}
        places_by_rows = (
            {count: [at for at, own in zip(places, rows, strict=True) if own == count] for count in counts - {0}}
            if len(counts) > 1
            else {rows[0]: places}
        )
        seconds = num_bytes = 0.0
        for part, count in calls:
            call_s, call_bytes = self._call(lane, part, total, places_by_rows)
            seconds, num_bytes = seconds + count * call_s, num_bytes + count * call_bytes
        return max(one_in_ticks(seconds), TICK_S), num_bytes  # at least a tick where tables fall with the context

    def _call(self, lane: str, part: Part, total: int, places_by_rows: Mapping[int, _Places]) -> tuple[float, float]:
        """Return the seconds and the bytes of a call over rows of several sequences.

        One with the longest context hides what it can behind what all share, see `costs.cost_model.Own`.
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
        """Return the seconds of every collective in a step of a lane; none where it is one device."""
        cost = self._tables.cost(lane)
        if not isinstance(cost, GroupCost):
            return ()
        calls = [(part, sum(rows), count) for parts, rows in step.works for part, count in parts]
        return tuple(seconds for part, rows, count in calls for seconds in cost.collectives_s(part, rows) * count)

    def check(self, num_sequences: int) -> None:
        """Raise `OutOfRangeError` if a lane has no cost for the rows of `num_sequences` that all have a window."""
        for lane, part, rows in self._demands:
            if reason := self._tables.missing_part(lane, part, rows * num_sequences):
                raise OutOfRangeError(reason)

    def least_s(self, schedule: Schedule, num_sequences: int) -> float:
        """Return the least seconds of a round in which all sequences have a window."""
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
