"""Lanes of the event world that slow each other.

Where `sim.events.free_lanes` counts up afterwards, here every start and end is an event, since it changes the pace
of the other lane. Equal steps are one run, which ends at the next boundary if a message arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from simpy import Event, Timeout

from decoding.messages import ExitSignal, Verdict, Window
from sim.cost.durations import StepKind, one_in_ticks
from sim.events.branch_progress import BranchProgress
from sim.events.free_lanes import NO_SIGNAL
from sim.events.shared_machine import DRAFT, TARGET, Run, SharedMachine
from sim.events.simulated_sequence import Course, Steps


class Reply(Event):
    """A handle whose time is not known yet when it is handed out."""

    def arrive_in(self, seconds: float, value: Any) -> None:
        """From now on it is: `value` arrives after so long, at a whole tick."""
        now_s = self.env.now
        self._ok = True
        self._value = value
        self.env.schedule(self, delay=one_in_ticks(now_s + seconds) - now_s)


class ContendedTargetLane:
    """See `decoding.lanes.TargetLane`."""

    __slots__ = ("_course", "_machine", "_queue")

    def __init__(self, course: Course, machine: SharedMachine) -> None:
        self._course = course
        self._machine = machine
        self._queue: deque[tuple[float, Run]] = deque()  # with the time of arrival

    def verify(self, window: Window) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._begin_round(0, self._course.verdict, self._course.costs.round_overhead_s)

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._begin_round(0, NO_SIGNAL, 0.0)

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        segment = 1 if window.tokens else 0
        return self._begin_round(segment, self._course.verdict, self._course.costs.round_overhead_s)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        course = self._course
        return self._submit(1, course.env.now, course.verdict, course.costs.round_overhead_s)

    def _begin_round(self, segment: int, value: Any, driver_s: float) -> Event:
        course = self._course
        now_s = course.env.now
        course.trace.begin_round(now_s)
        return self._submit(segment, now_s, value, driver_s)

    def _submit(self, segment: int, now_s: float, value: Any, driver_s: float) -> Event:
        """Queue a segment of the round; the driver needs `driver_s` before it acts on the reply."""
        course = self._course
        costs = course.costs
        reply = Reply(course.env)

        def end(run: Run) -> Run | None:
            if course.has_spans:
                start_s, end_s = run.times_s([run.work_s])
                work, rows = costs.segment_work[segment], costs.segment_rows[segment]
                course.write(course.schedule.target_lane, work, start_s, end_s, rows)
            reply.arrive_in(costs.target_half_s + driver_s, value)
            self._queue.popleft()
            return self._next()

        run = Run(TARGET, segment, costs.segments_s[segment][course.place], end)
        self._queue.append((now_s + costs.target_half_s, run))
        if len(self._queue) == 1 and self._next():
            self._start()
        return reply

    def _next(self) -> Run | None:
        """The run at the head of the queue, where it stays until it ends; if it has not arrived it starts later."""
        if not self._queue:
            return None
        arrives_s, run = self._queue[0]
        wait_s = arrives_s - self._course.env.now
        if wait_s <= 0:
            return run
        Timeout(self._course.env, wait_s).callbacks.append(self._start)
        return None

    def _start(self, _: Event | None = None) -> None:
        self._machine.start(self._queue[0][1])


class ContendedDraftLane:
    """See `decoding.lanes.DraftLane`. It has one operation at a time, since methods wait for each window."""

    __slots__ = ("_branches", "course", "machine")

    def __init__(self, course: Course, machine: SharedMachine) -> None:
        self.course = course
        self.machine = machine
        self._branches: ContendedBranches | None = None

    def rollout(self, verdict: Verdict | None = None) -> Event:
        """See `decoding.lanes.DraftLane`."""
        steps, reply = self.course.rollout(verdict), Reply(self.course.env)
        self.send(lambda _: self.machine.start(self.window_run(steps, reply)))
        return reply

    def branch(self, window: Window) -> ContendedBranches:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._branches = ContendedBranches(self)
        return self._branches

    def finish(self) -> None:
        """The sequence has ended: the step under way is the last."""
        if self._branches is not None:
            self._branches.stop()

    def send(self, arrive: Callable[[Event], None]) -> None:
        """Call `arrive` when a message that the driver sends now reaches the lane."""
        course = self.course
        Timeout(course.env, course.costs.draft_half_s).callbacks.append(arrive)

    def window_run(self, steps: Steps, reply: Reply) -> Run:
        """The `steps` that the next window still needs, behind which it is replied."""
        course = self.course

        def end(run: Run) -> None:
            if course.has_spans:
                self.write(steps, run)
            reply.arrive_in(course.costs.draft_half_s, course.window)

        return Run(DRAFT, steps.kind, steps.seconds, end)

    def write(self, steps: Steps, run: Run) -> None:
        """Write the `steps` of a run that has ended to the trace."""
        self.course.write_steps(steps, run.times_s(steps.ends_s()))


class ContendedBranches(BranchProgress):
    """See `decoding.lanes.Branches`.

    Messages are noticed at the first boundary at or behind their arrival, and at once if the lane is idle.
    """

    __slots__ = (
        "_arrives_s",
        "_is_stopped",
        "_kind",
        "_lane",
        "_num_steps",
        "_place",
        "_reply",
        "_run",
        "_verdict",
        "_waits_for_exit",
    )

    def __init__(self, lane: ContendedDraftLane) -> None:
        course = lane.course
        self.begin(course.costs.branch_plan)
        self._lane = lane
        self._place = course.place
        self._arrives_s = 0.0
        self._run: Run | None = None
        self._kind: StepKind = "one_row"
        self._num_steps = 0
        self._is_stopped = False
        self._verdict = course.verdict
        self._reply: Reply | None = None
        self._waits_for_exit = False
        if self.is_read:
            lane.send(self._begin)

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        course = self._lane.course
        self._arrives_s = course.send_exit_message()
        Timeout(course.env, self._arrives_s - course.env.now).callbacks.append(self._joined)

    def take(self, verdict: Verdict) -> Event:
        """See `decoding.lanes.Branches`."""
        course = self._lane.course
        self._verdict = verdict
        reply = self._reply = Reply(course.env)
        # Messages arrive in the order of sending: the request does not overtake the exit's message.
        arrives_s = course.env.now + course.costs.draft_half_s
        self._waits_for_exit = not self.has_joined and self._arrives_s >= arrives_s
        if not self._waits_for_exit:
            self._lane.send(self.stop)
        return reply

    def stop(self, _: Event | None = None) -> None:
        """The step under way is the last; then comes the next window, if one was asked for."""
        self._is_stopped = True
        self._notice()

    def _begin(self, _: Event) -> None:
        self._lane.machine.start(self._steps("one_row", 1))

    def _joined(self, _: Event) -> None:
        self.has_joined = True
        self._is_stopped = self._is_stopped or self._waits_for_exit
        self._notice()

    def _notice(self) -> None:
        """A message has arrived."""
        if self._run is None:
            run = self._go_on()
            if run is not None:
                self._lane.machine.start(run)
        elif self._kind != "one_row":
            step_s = self._lane.course.costs.step_s[self._kind][self._place]
            self._num_steps = self._lane.machine.cut(self._run, step_s)

    def _go_on(self) -> Run | None:
        """What to do at a boundary: the next steps if there are any, or what is wanted instead."""
        if self._is_stopped:
            return self._next_window()
        kind, num_steps = self.next_run()
        return self._steps(kind, num_steps) if num_steps else None

    def _next_window(self) -> Run | None:
        """What the next window still needs, if one was asked for; a window that is finished is replied."""
        lane, reply = self._lane, self._reply
        if reply is None:
            return None
        steps = lane.course.next_window(self, self._verdict)
        if steps is not None:
            return lane.window_run(steps, reply)
        reply.arrive_in(lane.course.costs.draft_half_s, lane.course.window)
        return None

    def _steps(self, kind: StepKind, num_steps: int) -> Run:
        work_s = num_steps * self._lane.course.costs.step_s[kind][self._place]
        self._kind, self._num_steps = kind, num_steps
        run = self._run = Run(DRAFT, kind, work_s, self._end)
        return run

    def _end(self, run: Run) -> Run | None:
        kind, num_steps = self._kind, self._num_steps
        self._run = None
        if num_steps:
            course = self._lane.course
            if course.has_spans:
                self._lane.write(course.branch_steps(kind, num_steps, self._place), run)
            if kind != "one_row":
                self.advance(kind, num_steps)
        return self._go_on()
