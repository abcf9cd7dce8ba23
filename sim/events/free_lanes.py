"""Lanes of the event world that do not slow each other: all that lies between two messages is arithmetic.

One event for each reply. What a lane does in between (the layers of a verification, the steps of the branches)
is counted up when a message arrives, and written out step by step only if a trace of it is wanted. A message
takes half a dispatch to a lane, a reply the other half back; lanes that slow each other are in
`sim.events.contended_lanes`.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from simpy import Timeout

from decoding.messages import ExitSignal, Verdict, Window
from sim.cost.durations import StepKind
from sim.events.branch_progress import BranchProgress
from sim.events.simulated_sequence import Course, Steps

NO_SIGNAL = ExitSignal(())
"""What the exit names is known to the acceptance model already; a method only passes the message on."""


class TargetLane:
    """See `decoding.lanes.TargetLane`."""

    __slots__ = ("_course", "_free_s")

    def __init__(self, course: Course) -> None:
        self._course = course
        self._free_s = 0.0

    def verify(self, window: Window) -> Timeout:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`; the window is the one that the draft lane has replied."""
        return self._begin_round(0, self._course.verdict, self._course.costs.round_overhead_s)

    def prefix(self, window: Window, exit_layer: int) -> Timeout:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`; the exit is the schedule's."""
        return self._begin_round(0, NO_SIGNAL, 0.0)

    def stream(self, window: Window) -> Timeout:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        segment = 1 if window.tokens else 0
        return self._begin_round(segment, self._course.verdict, self._course.costs.round_overhead_s)

    def suffix(self) -> Timeout:
        """See `decoding.lanes.TargetLane`."""
        course = self._course
        return self._reply(1, course.env.now, course.verdict, course.costs.round_overhead_s)

    def _begin_round(self, segment: int, value: Any, driver_s: float) -> Timeout:
        course = self._course
        now_s = course.env.now
        course.trace.begin_round(now_s)
        return self._reply(segment, now_s, value, driver_s)

    def _reply(self, segment: int, now_s: float, value: Any, driver_s: float) -> Timeout:
        """Compute a segment of the round; the driver needs `driver_s` before it acts on the reply."""
        course = self._course
        costs = course.costs
        start_s = _later(now_s + costs.target_half_s, self._free_s)
        end_s = self._free_s = start_s + costs.segments_s[segment][course.place]
        if course.has_spans:
            work, rows = costs.segment_work[segment], costs.segment_rows[segment]
            course.write(course.schedule.target_lane, work, start_s, end_s, rows)
        return Timeout(course.env, end_s + costs.target_half_s + driver_s - now_s, value)


class DraftLane:
    """See `decoding.lanes.DraftLane`.

    Attributes:
        free_s: how far the lane's work has been counted up.
    """

    __slots__ = ("_branches", "course", "free_s")

    def __init__(self, course: Course) -> None:
        self.course = course
        self.free_s = 0.0
        self._branches: Branches | None = None

    def rollout(self, verdict: Verdict | None = None) -> Timeout:
        """See `decoding.lanes.DraftLane`."""
        course = self.course
        half_s, now_s = course.costs.draft_half_s, course.env.now
        self.free_s = _later(now_s + half_s, self.free_s)
        self.compute(course.rollout(verdict))
        return Timeout(course.env, self.free_s + half_s - now_s, course.window)

    def branch(self, window: Window) -> Branches:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._branches = Branches(self)
        return self._branches

    def compute(self, steps: Steps) -> None:
        """Do `steps` from when the lane is free."""
        start_s = self.free_s
        self.free_s = start_s + steps.seconds
        if self.course.has_spans:
            self.course.write_in_a_row(steps, start_s)

    def finish(self) -> None:
        """The sequence has ended: the step under way is the last."""
        if self._branches is not None:
            self._branches.step_until(self.course.env.now)


class Branches(BranchProgress):
    """See `decoding.lanes.Branches`. Steps are counted up to each message, which is noticed at the boundary behind."""

    __slots__ = ("_joins_s", "_lane", "_place")

    def __init__(self, lane: DraftLane) -> None:
        course = lane.course
        self.begin(course.costs.branch_plan)
        self._lane = lane
        self._place = course.place
        self._joins_s: float | None = None
        lane.free_s = _later(course.env.now + course.costs.draft_half_s, lane.free_s)
        if self.is_read:
            self._do("one_row", 1, course.costs.step_s["one_row"][course.place])

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        self._joins_s = self._lane.course.send_exit_message()

    def take(self, verdict: Verdict) -> Timeout:
        """See `decoding.lanes.Branches`. Messages arrive in the order of sending: none overtakes the exit's."""
        lane = self._lane
        course = lane.course
        half_s, now_s = course.costs.draft_half_s, course.env.now
        request_s = now_s + half_s
        if self._joins_s is not None and self._joins_s > request_s:
            request_s = self._joins_s
        self.step_until(request_s)
        steps = course.next_window(self, verdict)
        if steps is not None:
            lane.compute(steps)
        return Timeout(course.env, lane.free_s + half_s - now_s, course.window)

    def step_until(self, message_s: float) -> None:
        """Do the steps that begin before a message arrives, and wait for it if there is nothing to do.

        The exit's roots join on the way, if their message arrived before.
        """
        if self._joins_s is not None and self._joins_s < message_s:
            self._count_up(self._joins_s)
            self.has_joined = True
        self._count_up(message_s)

    def _count_up(self, message_s: float) -> None:
        lane, step_s = self._lane, self._lane.course.costs.step_s
        while lane.free_s < message_s:
            kind, num_steps = self.next_run()
            if not num_steps:
                lane.free_s = message_s
                return
            one_s = step_s[kind][self._place]
            if lane.free_s + num_steps * one_s > message_s:
                num_steps = ceil((message_s - lane.free_s) / one_s)
            self.advance(kind, num_steps)
            self._do(kind, num_steps, one_s)

    def _do(self, kind: StepKind, num_steps: int, step_s: float) -> None:
        lane = self._lane
        course = lane.course
        if course.has_spans:
            course.write_in_a_row(course.branch_steps(kind, num_steps, self._place), lane.free_s)
        lane.free_s += num_steps * step_s


def _later(one_s: float, other_s: float) -> float:
    """The later of two times, several times as fast as `max`."""
    return one_s if one_s > other_s else other_s  # noqa: FURB136
