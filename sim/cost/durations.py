"""How long the operations of a schedule take on a profile, by context: the formulas of both simulators, once.

The context of an operation is the number of committed tokens (prompt and new ones) minus one, which is what the
target's cache holds. Operations are ::

    verify = num_layers * layer + head            prefix = exit_layer * layer + exit
    suffix = (num_layers - exit_layer) * layer + head
    stream = verify + streams

over all drafted tokens and one row more; a step of the draft is one call of its own part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import floor
from typing import Literal, NamedTuple

import numpy as np

from decoding.errors import ConfigError
from decoding.schedule import HEAD_METHODS, Schedule
from hwprofiles.profile import Profile
from sim.cost.contention import PairContention, Slowdown
from sim.cost.cost_model import Floats, LaneCost, MeasuredCost, Part, PartFacts
from sim.cost.round_shape import RoundShape

TICK_S = 2.0**-40
"""Durations are whole ticks of 0.9 ps. Sums of ticks are exact below 8192 s, so the order of additions does not
matter, and two lanes meet at the same boundary in both simulators or in neither."""

BYTES_PER_CANDIDATE = 8
"""A candidate crosses the link as a 32-bit id and a 32-bit log-prob."""

StepKind = Literal["one_row", "draft_roots", "all_roots", "exit_roots", "window_and_roots"]
"""Steps of a branch operation by what they compute; `one_row` also serves rollouts and finishing."""


def in_ticks(seconds: Floats) -> Floats:
    """The nearest whole ticks; halves go up, so that a delay of whole ticks before or after changes nothing."""
    return np.floor(seconds / TICK_S + 0.5) * TICK_S


def one_in_ticks(seconds: float) -> float:
    """`in_ticks` of a single number, which is faster that way."""
    return floor(seconds / TICK_S + 0.5) * TICK_S


def work_in_ticks(seconds: Floats) -> Floats:
    """The nearest whole ticks, one at least: no work takes no time."""
    return np.maximum(in_ticks(seconds), TICK_S)


class Operation(NamedTuple):
    """A target operation: the number of calls of each part, and the rows of all of them."""

    calls: Mapping[Part, int]
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """All times that a schedule needs, over consecutive contexts.

    Attributes:
        first_context: context of the first entry of every array.
        segments_s: the target's operations: (verify,), (prefix, suffix), or (stream without a tree, with one).
        segment_rows: rows of each.
        streams_s: the share of each that drafts; zero without streams.
        step_s: steps of a draft language model by kind.
        catch_up_s: at [r - 1] the first step of a rollout that has r committed tokens to read, [most r, contexts].
        later_s: the steps of a rollout behind its first one.
        later_rows: rows of each.
        guessing_s: steps that verify 0, 1, ... guesses of the draft's streams, made in them too, [guesses, contexts];
            none without streams.
        slowdowns: for each segment and kind of step, what they cost each other.
        can_contend: whether the lanes are two and cost each other anything.
        target_half_s, draft_half_s: half a dispatch, before and after each operation.
        round_overhead_s: the driver's own time, between a verdict and the next operation.
        transfer_s: the exit message's time on the link.
        target_relative_error, draft_relative_error: spread of the measurements, the target's weighted by time.
        sources: where the numbers come from.
    """

    first_context: int
    segments_s: tuple[Floats, ...]
    segment_rows: tuple[int, ...]
    streams_s: tuple[Floats, ...]
    step_s: Mapping[StepKind, Floats]
    catch_up_s: Floats
    later_s: tuple[Floats, ...]
    later_rows: tuple[int, ...]
    guessing_s: Floats
    slowdowns: tuple[Mapping[StepKind, Slowdown], ...]
    can_contend: bool
    target_half_s: float
    draft_half_s: float
    round_overhead_s: float
    transfer_s: float
    target_relative_error: float
    draft_relative_error: float
    sources: tuple[str, ...]

    @property
    def rollout_s(self) -> Floats:
        """Whole rollouts, at [r - 1] with r committed tokens to read, [most r, contexts]."""
        return self.catch_up_s + sum(self.later_s)


class DurationTables:
    """Durations of any schedule on one profile over one range of contexts; every part is looked up once."""

    def __init__(self, profile: Profile, contexts: range, costs: Mapping[str, LaneCost] | None = None) -> None:
        """`costs` replaces the measured cost of the lanes that it names."""
        self.profile = profile
        self._contexts = np.arange(contexts.start, contexts.stop, dtype=np.float64)
        self._first_context = contexts.start
        self._costs: dict[str, LaneCost] = {lane.name: MeasuredCost(lane) for lane in profile.lanes}
        self._costs |= costs or {}
        self._calls: dict[tuple[str, Part, float], Floats] = {}
        self._spreads: dict[tuple[str, tuple[tuple[Part, int, int], ...]], float] = {}

    def durations(self, schedule: Schedule, shape: RoundShape) -> Durations:
        """The durations of `schedule`, whose rounds have a given shape.

        Raises:
            ProfileError: the profile lacks a lane or a part that the schedule uses.
            OutOfRangeError: rows or contexts lie outside what was measured.
            ConfigError: the exit does not lie below the target's last layer.
        """
        target, draft = schedule.target_lane, schedule.draft_lane or schedule.target_lane
        operations = self._operations(schedule, shape)
        streams = self._streams(schedule, operations)
        segments = [
            work_in_ticks(self._seconds(target, operation)) + more
            for operation, more in zip(operations, streams, strict=True)
        ]
        part = _drafting_part(schedule)
        rows = step_rows(schedule, shape.num_exit_roots)

        @cache
        def step(count: int) -> Floats:
            assert part is not None, "a step of a draft that is not there"
            return work_in_ticks(self._call(draft, part, count))

        step_s = {kind: step(count) for kind, count in rows.items()}
        later_rows = shape.level_rows if schedule.is_tree else (1,) * (schedule.num_speculative_tokens - 1)
        facts = [self._facts(draft, part)] if part else []
        pair = PairContention.of(self.profile, target, draft)
        return Durations(
            first_context=self._first_context,
            segments_s=tuple(segments),
            segment_rows=tuple(operation.rows for operation in operations),
            streams_s=tuple(streams),
            step_s=step_s,
            catch_up_s=np.array([step(count) for count in range(1, _most_tokens_to_read(schedule) + 1)]),
            later_s=tuple(step(count) for count in later_rows),
            later_rows=later_rows,
            guessing_s=self._guessing_s(schedule, draft),
            slowdowns=tuple(
                {
                    kind: pair.slowdown(self._bytes(target, operation) / segment, facts[0].bytes_per_call / seconds)
                    for kind, seconds in step_s.items()
                }
                for operation, segment in zip(operations, segments, strict=True)
            ),
            can_contend=schedule.draft_lane not in (None, target) and not pair.is_free,
            target_half_s=self._half_dispatch_s(target),
            draft_half_s=self._half_dispatch_s(draft),
            round_overhead_s=one_in_ticks(self.profile.round_overhead_s),
            transfer_s=one_in_ticks(self._transfer_s(schedule)),
            target_relative_error=self._spread(target, operations),
            draft_relative_error=max((one.relative_error for one in facts), default=0.0),
            sources=tuple(dict.fromkeys(one.source for one in [*self._all_facts(target, operations), *facts])),
        )

    def _operations(self, schedule: Schedule, shape: RoundShape) -> list[Operation]:
        """The target's operations of a round, without what streams add to them."""
        num_layers, exit_layer, rows = self.profile.num_layers, schedule.exit_layer, shape.num_drafted + 1
        verify = Operation({LAYER: num_layers, LM_HEAD: 1}, rows)
        if schedule.method == "speculative_streaming":
            return [verify._replace(rows=1), verify]
        if exit_layer is None:
            return [verify]
        if exit_layer >= num_layers:
            msg = f"exit_layer is {exit_layer}, but the profile's target has {num_layers} layers: 1..{num_layers - 1}"
            raise ConfigError(msg)
        prefix = Operation({LAYER: exit_layer, Part("exit", exit_layer): 1}, rows)
        return [prefix, Operation({LAYER: num_layers - exit_layer, LM_HEAD: 1}, rows)]

    def _streams(self, schedule: Schedule, operations: Sequence[Operation]) -> list[Floats]:
        """What drafting adds to each of the target's operations."""
        if schedule.method != "speculative_streaming":
            return [np.zeros(len(self._contexts))] * len(operations)
        part = Part("streams", drafter=schedule.drafter)
        return [work_in_ticks(self._call(schedule.target_lane, part, one.rows)) for one in operations]

    def _guessing_s(self, schedule: Schedule, lane: str) -> Floats:
        """Steps of drafted tokens, which have no features: one row of the draft for each guess and one more."""
        if not schedule.draft_streams:
            return np.zeros((0, len(self._contexts)))
        steps, streams = Part("draft_step"), Part("draft_streams")
        first = work_in_ticks(self._call(lane, _drafting_part(schedule) or steps, 1))
        more = [
            work_in_ticks(self._call(lane, steps, count + 1)) + work_in_ticks(self._call(lane, streams, count))
            for count in range(1, schedule.draft_streams + 1)
        ]
        return np.array([first, *more])

    def _seconds(self, lane: str, operation: Operation) -> Floats:
        total = np.zeros(len(self._contexts))
        for part, count in operation.calls.items():
            total += count * self._call(lane, part, operation.rows)
        return total

    def _bytes(self, lane: str, operation: Operation) -> float:
        return sum(count * self._facts(lane, part).bytes_per_call for part, count in operation.calls.items())

    def _spread(self, lane: str, operations: Sequence[Operation]) -> float:
        """Relative error of the target's operations together, if every part errs the same way."""
        calls = tuple((part, count, one.rows) for one in operations for part, count in one.calls.items())
        if (lane, calls) not in self._spreads:
            seconds = [count * float(self._call(lane, part, rows).mean()) for part, count, rows in calls]
            errors = [self._facts(lane, part).relative_error for part, _, _ in calls]
            self._spreads[lane, calls] = float(np.average(errors, weights=seconds)) if sum(seconds) else 0.0
        return self._spreads[lane, calls]

    def _call(self, lane: str, part: Part, rows: float) -> Floats:
        seconds = self._calls.get((lane, part, rows))
        if seconds is None:
            self.profile.lane(lane)
            seconds = self._calls[lane, part, rows] = self._costs[lane].seconds(part, rows, self._contexts)
        return seconds

    def _facts(self, lane: str, part: Part) -> PartFacts:
        return self._costs[lane].facts(part)

    def _all_facts(self, lane: str, operations: Sequence[Operation]) -> list[PartFacts]:
        return [self._facts(lane, part) for operation in operations for part in operation.calls]

    def _half_dispatch_s(self, lane: str) -> float:
        return one_in_ticks(self.profile.lane(lane).dispatch_s / 2)

    def _transfer_s(self, schedule: Schedule) -> float:
        """The exit message over the link between the lanes; nothing where the profile has no such link.

        A link that is known the other way round only serves both ways.
        """
        links = {link.lanes: link for link in self.profile.links}
        lanes = (schedule.target_lane, schedule.draft_lane or schedule.target_lane)
        link = links.get(lanes) or links.get(lanes[::-1])
        if link is None or not schedule.uses_exit:
            return 0.0
        bytes_per_row: float = BYTES_PER_CANDIDATE * schedule.num_exit_candidates
        if schedule.exit_features:
            bytes_per_row += self.profile.features_bytes_per_row
        return link.latency_s + schedule.num_rows * bytes_per_row / link.bytes_per_s


def step_rows(schedule: Schedule, num_exit_roots: int) -> dict[StepKind, int]:
    """Rows of every kind of step that the schedule's draft language model can come to."""
    if schedule.method not in ("speculative", "mirror"):
        return {}
    num_draft_roots = sum(schedule.draft_roots_per_row)
    rows: dict[StepKind, int] = {"one_row": 1}
    if schedule.root_source in ("draft", "hybrid"):
        rows["draft_roots"] = num_draft_roots
    if schedule.root_source == "hybrid":
        rows["all_roots"] = num_draft_roots + num_exit_roots
    if schedule.uses_exit:
        rows["exit_roots"] = num_exit_roots
    if schedule.root_source == "exit" and schedule.exit_features:
        rows["window_and_roots"] = schedule.num_speculative_tokens + num_exit_roots
    return rows


LAYER, LM_HEAD = Part("layer"), Part("lm_head")


def _most_tokens_to_read(schedule: Schedule) -> int:
    """Most committed tokens that the draft has not read when a rollout starts.

    With the target's features all of the last round's are read with theirs. Without, a synchronous draft has
    never read the last token of a window that was accepted whole; in mirror's branch operation it has.
    """
    if schedule.draft_lane is None:
        return 0
    if schedule.reads_features:
        return schedule.num_speculative_tokens + 1
    return 2 if schedule.method == "speculative" else 1


def _drafting_part(schedule: Schedule) -> Part | None:
    """The part that is called to draft; None where nobody drafts."""
    if schedule.method == "autoregressive":
        return None
    if schedule.method == "speculative_streaming":
        return Part("streams", drafter=schedule.drafter)
    if schedule.method in HEAD_METHODS:
        return Part("head_step", drafter=schedule.drafter)
    return Part("draft_step_features" if schedule.exit_features else "draft_step")
