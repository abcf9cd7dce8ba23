"""Lanes of the event world. They slow each other: every start and end is an event, since it changes the other's pace.

Equal steps are one run, which ends at the next boundary if a message arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from simpy import Event, Timeout

from decoding.messages import ExitSignal, Verdict, Window
from sim.cost.durations import one_in_ticks
from sim.cost.round_plan import StepKind
from sim.events.branch_progress import BranchProgress
from sim.events.shared_machine import DRAFT, TARGET, Run, SharedMachine
from sim.events.simulated_sequence import SimulatedSequence, Steps

NO_SIGNAL = ExitSignal(())
"""What the exit names is known to the acceptance model already; a method only passes the message on."""


class SimulatedLanes:
    """See `decoding.lanes.Lanes`; handles are SimPy events."""

    __slots__ = ("_sequence", "draft", "target")

    def __init__(self, sequence: SimulatedSequence) -> None:
        machine = SharedMachine(sequence)
        self._sequence = sequence
        self.target = SimulatedTargetLane(sequence, machine)
        self.draft = SimulatedDraftLane(sequence, machine)

    @property
    def unfinished(self) -> bool:
        """See `decoding.lanes.Lanes`."""
        return self._sequence.unfinished

    def commit(self, window: Window, verdict: Verdict) -> None:
        """See `decoding.lanes.Lanes`."""
        self._sequence.commit(window, verdict)
        if not self._sequence.unfinished:
            self.draft.finish()


class Reply(Event):
    """A handle whose time is not known yet when it is handed out."""

    def arrive_in(self, seconds: float, value: Any) -> None:
        """From now on it is: `value` arrives after so long, at a whole tick."""
        now_s = self.env.now
        self._ok = True
        self._value = value
        self.env.schedule(self, delay=one_in_ticks(now_s + seconds) - now_s)


class SimulatedTargetLane:
    """See `decoding.lanes.TargetLane`."""

    __slots__ = ("_machine", "_queue", "_sequence")

    def __init__(self, sequence: SimulatedSequence, machine: SharedMachine) -> None:
        self._sequence = sequence
        self._machine = machine
        self._queue: deque[tuple[float, Run]] = deque()  # with the time of arrival

    def verify(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the window is the one that the draft lane has replied."""
        costs = self._sequence.costs
        return self._begin_round(costs.verification[len(window.tokens)], self._sequence.verdict, costs.round_overhead_s)

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._begin_round(0, NO_SIGNAL, 0.0)

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        return self.verify(window)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        sequence = self._sequence
        return self._submit(1, sequence.env.now, sequence.verdict, sequence.costs.round_overhead_s)

    def _begin_round(self, segment: int, value: Any, driver_s: float) -> Event:
        sequence = self._sequence
        now_s = sequence.env.now
        sequence.trace.begin_round(now_s)
        return self._submit(segment, now_s, value, driver_s)

    def _submit(self, segment: int, now_s: float, value: Any, driver_s: float) -> Event:
        """Queue a segment of the round; the driver needs `driver_s` before it acts on the reply."""
        sequence = self._sequence
        costs = sequence.costs
        reply = Reply(sequence.env)

        def end(run: Run) -> Run | None:
            if sequence.has_spans:
                start_s, end_s = run.times_s([run.work_s])
                work, rows = costs.segment_work[segment], costs.segment_rows[segment]
                sequence.write(sequence.schedule.target_lane, work, start_s, end_s, rows)
            reply.arrive_in(costs.target_half_s + driver_s, value)
            self._queue.popleft()
            return self._next()

        run = Run(TARGET, segment, costs.segments_s[segment][sequence.place], end)
        self._queue.append((now_s + costs.target_half_s, run))
        if len(self._queue) == 1 and self._next():
            self._start()
        return reply

    def _next(self) -> Run | None:
        """The run at the head of the queue, where it stays until it ends; if it has not arrived it starts later."""
        if not self._queue:
            return None
        arrives_s, run = self._queue[0]
        wait_s = arrives_s - self._sequence.env.now
        if wait_s <= 0:
            return run
        Timeout(self._sequence.env, wait_s).callbacks.append(self._start)
        return None

    def _start(self, _: Event | None = None) -> None:
        self._machine.start(self._queue[0][1])


class SimulatedDraftLane:
    """See `decoding.lanes.DraftLane`. It has one operation at a time, since methods wait for each window."""

    __slots__ = ("_branches", "machine", "sequence")

    def __init__(self, sequence: SimulatedSequence, machine: SharedMachine) -> None:
        self.sequence = sequence
        self.machine = machine
        self._branches: SimulatedBranches | None = None

    def rollout(self, verdict: Verdict | None = None) -> Event:
        """See `decoding.lanes.DraftLane`."""
        steps, reply = self.sequence.rollout(verdict), Reply(self.sequence.env)
        self.send(lambda _: self.machine.start(self.window_run(steps, reply)))
        return reply

    def branch(self, window: Window) -> SimulatedBranches:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._branches = SimulatedBranches(self)
        return self._branches

    def finish(self) -> None:
        """The sequence has ended: the step under way is the last."""
        if self._branches is not None:
            self._branches.stop()

    def send(self, arrive: Callable[[Event], None]) -> None:
        """Call `arrive` when a message that the driver sends now reaches the lane."""
        sequence = self.sequence
        Timeout(sequence.env, sequence.costs.draft_half_s).callbacks.append(arrive)

    def window_run(self, steps: Steps, reply: Reply) -> Run:
        """The `steps` that the next window still needs, after which it is replied."""
        sequence = self.sequence

        def end(run: Run) -> None:
            if sequence.has_spans:
                self.write(steps, run)
            reply.arrive_in(sequence.costs.draft_half_s, sequence.window)

        return Run(DRAFT, steps.kind, steps.seconds, end)

    def write(self, steps: Steps, run: Run) -> None:
        """Write the `steps` of a run that has ended to the trace."""
        self.sequence.write_steps(steps, run.times_s(steps.ends_s()))


class SimulatedBranches(BranchProgress):
    """See `decoding.lanes.Branches`.

    Messages are noticed at the first boundary at or after their arrival, and at once if the lane is idle.
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

    def __init__(self, lane: SimulatedDraftLane) -> None:
        sequence = lane.sequence
        self.begin(sequence.costs.branch_plan)
        self._lane = lane
        self._place = sequence.place
        self._arrives_s = 0.0
        self._run: Run | None = None
        self._kind: StepKind = "one_row"
        self._num_steps = 0
        self._is_stopped = False
        self._verdict = sequence.verdict
        self._reply: Reply | None = None
        self._waits_for_exit = False
        if self.is_read:
            lane.send(self._begin)

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        sequence = self._lane.sequence
        self._arrives_s = sequence.send_exit_message()
        Timeout(sequence.env, self._arrives_s - sequence.env.now).callbacks.append(self._joined)

    def take(self, verdict: Verdict) -> Event:
        """See `decoding.lanes.Branches`."""
        sequence = self._lane.sequence
        self._verdict = verdict
        reply = self._reply = Reply(sequence.env)
        # Messages arrive in the order of sending: the request does not overtake the exit's message.
        arrives_s = sequence.env.now + sequence.costs.draft_half_s
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
            step_s = self._lane.sequence.costs.step_s[self._kind][self._place]
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
        steps = lane.sequence.next_window(self, self._verdict)
        if steps is not None:
            return lane.window_run(steps, reply)
        reply.arrive_in(lane.sequence.costs.draft_half_s, lane.sequence.window)
        return None

    def _steps(self, kind: StepKind, num_steps: int) -> Run:
        work_s = num_steps * self._lane.sequence.costs.step_s[kind][self._place]
        self._kind, self._num_steps = kind, num_steps
        run = self._run = Run(DRAFT, kind, work_s, self._end)
        return run

    def _end(self, run: Run) -> Run | None:
        kind, num_steps = self._kind, self._num_steps
        self._run = None
        if num_steps:
            sequence = self._lane.sequence
            if sequence.has_spans:
                self._lane.write(sequence.branch_steps(kind, num_steps, self._place), run)
            if kind != "one_row":
                self.advance(kind, num_steps)
        return self._go_on()
