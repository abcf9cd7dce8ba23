"""Lanes of the event world that slow each other.

Where `sim.lanes` counts up afterwards, here every start and end is an event, since it changes the pace of the
other lane. Equal steps are one run, which ends at the next boundary if a message arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from simpy import Event, Timeout

from decoding.messages import ExitSignal, Verdict, Window
from decoding.trace import Work
from sim.branches import BranchProgress
from sim.course import Course, Steps
from sim.durations import StepKind, one_in_ticks
from sim.lanes import NO_SIGNAL
from sim.shared_machine import DRAFT, TARGET, Run, SharedMachine


class Reply(Event):
    """A handle whose time is not known yet when it is handed out."""

    def arrive_in(self, seconds: float, value: Any) -> None:
        """From now on it is: `value` arrives after so long, at a whole tick."""
        now_s = self.env.now
        self._ok = True
        self._value = value
        self.env.schedule(self, delay=one_in_ticks(now_s + seconds) - now_s)


class _Operation(NamedTuple):
    """A segment of the target on its way to the lane, or waiting there."""

    work: Work
    segment: int
    work_s: float
    arrives_s: float
    reply: Reply
    value: Any
    driver_s: float


class ContendedTargetLane:
    """See `decoding.lanes.TargetLane`."""

    __slots__ = ("_course", "_machine", "_queue")

    def __init__(self, course: Course, machine: SharedMachine) -> None:
        self._course = course
        self._machine = machine
        self._queue: deque[_Operation] = deque()

    def verify(self, window: Window) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        course = self._course
        course.trace.begin_round(course.env.now)
        return self._submit(Work.VERIFY, 0, course.verdict, course.costs.round_overhead_s)

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        course = self._course
        course.trace.begin_round(course.env.now)
        return self._submit(Work.PREFIX, 0, NO_SIGNAL, 0.0)

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        course = self._course
        course.trace.begin_round(course.env.now)
        return self._submit(Work.STREAM, 1 if window.tokens else 0, course.verdict, course.costs.round_overhead_s)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        return self._submit(Work.SUFFIX, 1, self._course.verdict, self._course.costs.round_overhead_s)

    def _submit(self, work: Work, segment: int, value: Any, driver_s: float) -> Event:
        course = self._course
        costs, env = course.costs, course.env
        work_s = costs.segments_s[segment][course.place]
        reply = Reply(env)
        arrives_s = env.now + costs.target_half_s
        self._queue.append(_Operation(work, segment, work_s, arrives_s, reply, value, driver_s))
        if len(self._queue) == 1:
            self._wait(costs.target_half_s)
        return reply

    def _wait(self, seconds: float) -> None:
        """Begin the operation at the head of the queue when it has arrived; it stays there until it ends."""
        if seconds > 0:
            Timeout(self._course.env, seconds).callbacks.append(self._start)
        else:
            self._start()

    def _start(self, _: Event | None = None) -> None:
        operation = self._queue[0]
        self._machine.start(Run(TARGET, operation.segment, operation.work_s, self._end))

    def _end(self, run: Run) -> None:
        course, operation = self._course, self._queue.popleft()
        if course.has_spans:
            start_s, end_s = run.times_s([run.work_s])
            rows = course.costs.segment_rows[operation.segment]
            course.write(course.schedule.target_lane, operation.work, start_s, end_s, rows)
        operation.reply.arrive_in(course.costs.target_half_s + operation.driver_s, operation.value)
        if self._queue:
            self._wait(self._queue[0].arrives_s - course.env.now)


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
        self.send(lambda _: self.compute_window(steps, reply))
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

    def compute_window(self, steps: Steps | None, reply: Reply) -> None:
        """Do the `steps` that the next window still needs and reply it."""
        course = self.course
        if steps is None:
            reply.arrive_in(course.costs.draft_half_s, course.window)
            return

        def end(run: Run) -> None:
            if course.has_spans:
                self.write(steps, run)
            reply.arrive_in(course.costs.draft_half_s, course.window)

        self.machine.start(Run(DRAFT, steps.kind, steps.seconds, end))

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
        super().__init__(course.schedule)
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
        self._start("one_row", 1)

    def _joined(self, _: Event) -> None:
        self.has_joined = True
        self._is_stopped = self._is_stopped or self._waits_for_exit
        self._notice()

    def _notice(self) -> None:
        """A message has arrived."""
        if self._run is None:
            self._go_on()
        elif self._kind != "one_row":
            step_s = self._lane.course.costs.step_s[self._kind][self._place]
            self._num_steps = self._lane.machine.cut(self._run, step_s)

    def _go_on(self) -> None:
        """At a boundary: do the next steps or wait, unless something else is wanted."""
        if not self._is_stopped:
            kind, num_steps = self.next_run()
            if num_steps:
                self._start(kind, num_steps)
        elif self._reply is not None:
            lane = self._lane
            lane.compute_window(lane.course.next_window(self, self._verdict), self._reply)

    def _start(self, kind: StepKind, num_steps: int) -> None:
        lane = self._lane
        work_s = num_steps * lane.course.costs.step_s[kind][self._place]
        self._kind, self._num_steps = kind, num_steps
        self._run = Run(DRAFT, kind, work_s, self._end)
        lane.machine.start(self._run)

    def _end(self, run: Run) -> None:
        kind, num_steps = self._kind, self._num_steps
        self._run = None
        if num_steps:
            course = self._lane.course
            if course.has_spans:
                self._lane.write(course.branch_steps(kind, num_steps, self._place), run)
            if kind != "one_row":
                self.advance(kind, num_steps)
        self._go_on()
