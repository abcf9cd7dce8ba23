"""Lanes of the event world. They slow each other: every start and end is an event, since it changes the other's pace.

Equal steps are one run, which ends at the next boundary if a message arrives.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from simpy import Event, Timeout

from decoding.messages import ExitSignal, Verdict, Window
from decoding.trace import Work
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT
from sim.cost.round_plan import DRAFT_STEPS, EXIT_STEPS, StepKind
from sim.events.shared_machine import DRAFT, TARGET, Run, Runs, SharedMachine
from sim.events.simulated_sequence import SimulatedSequence, Steps
from sim.ticks import one_in_ticks

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
        self._queue: deque[tuple[float, int, Reply, Any, float]] = deque()  # time of arrival, and what `_submit` takes
        machine.runs[TARGET] = self._runs()

    def verify(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the window is the one that the draft lane has replied."""
        costs = self._sequence.costs
        self._begin_round()
        return self._submit(costs.plan.widths.index(len(window.tokens)), self._sequence.verdict, costs.round_overhead_s)

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        self._begin_round()
        return self._submit(0, NO_SIGNAL, 0.0)

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        return self.verify(window)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        return self._submit(1, self._sequence.verdict, self._sequence.costs.round_overhead_s)

    def _begin_round(self) -> None:
        self._sequence.trace.begin_round(self._sequence.env.now)

    def _submit(self, segment: int, value: Any, driver_s: float) -> Event:
        """Queue a segment of the round; the driver needs `driver_s` before it acts on the reply."""
        env = self._sequence.env
        reply = Reply(env)
        self._queue.append((env.now + self._sequence.costs.target_half_s, segment, reply, value, driver_s))
        if len(self._queue) == 1:
            self._machine.resume(TARGET)
        return reply

    def _runs(self) -> Runs:
        """Segments in the order of their arrival; each stays in the queue until it ends."""
        sequence, queue = self._sequence, self._queue
        costs, resume = sequence.costs, partial(self._machine.resume, TARGET)
        while True:
            if not queue:
                yield None
            arrives_s, segment, reply, value, driver_s = queue[0]
            if (wait_s := arrives_s - sequence.env.now) > 0:
                Timeout(sequence.env, wait_s).callbacks.append(resume)
                yield None
            run = Run(segment, costs.segments_s[segment][sequence.place])
            yield run
            if sequence.has_spans:
                operation = costs.plan.segments[segment]
                start_s, end_s = run.times_s([run.work_s])
                sequence.write(sequence.schedule.target_lane, operation.work, start_s, end_s, operation.rows)
            reply.arrive_in(costs.target_half_s + driver_s, value)
            queue.popleft()


class SimulatedDraftLane:
    """See `decoding.lanes.DraftLane`. It has one operation at a time, since methods wait for each window."""

    __slots__ = ("_branches", "machine", "resume", "sequence")

    def __init__(self, sequence: SimulatedSequence, machine: SharedMachine) -> None:
        self.sequence = sequence
        self.machine = machine
        self.resume = partial(machine.resume, DRAFT)
        self._branches: SimulatedBranches | None = None

    def rollout(self, verdict: Verdict | None = None) -> Event:
        """See `decoding.lanes.DraftLane`."""
        reply = Reply(self.sequence.env)
        self.machine.runs[DRAFT] = self.window(self.sequence.rollout(verdict), reply)
        self.send().callbacks.append(self.resume)
        return reply

    def branch(self, window: Window) -> SimulatedBranches:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._branches = SimulatedBranches(self)
        return self._branches

    def finish(self) -> None:
        """The sequence has ended: the step under way is the last."""
        if self._branches is not None:
            self._branches.stop()

    def send(self) -> Event:
        """The arrival of a message that the driver sends to the lane now."""
        return Timeout(self.sequence.env, self.sequence.costs.draft_half_s)

    def window(self, steps: Steps | None, reply: Reply) -> Runs:
        """The steps that the next window still needs, after which it is replied."""
        sequence = self.sequence
        if steps is not None:
            run = Run(steps.kind, steps.seconds)
            yield run
            if sequence.has_spans:
                sequence.write_steps(steps, run.times_s(steps.steps_s))
        reply.arrive_in(sequence.costs.draft_half_s, sequence.window)


class SimulatedBranches:
    """See `decoding.lanes.Branches`.

    All unfinished branches advance together: draft-sourced ones at once, exit-sourced ones when the exit's message has
    arrived; with exit features the first step reads the whole window again. See `sim.arrays.mirror_round` for the same
    in arrays. Messages are noticed at the first boundary at or after their arrival, and at once if the lane is idle.
    """

    __slots__ = (
        "_arrives_s", "_draft_left", "_exit_left", "_has_joined", "_is_read", "_is_stopped", "_lane", "_num_steps",
        "_place", "_reads_last", "_reply", "_run", "_verdict", "_waits_for_exit",
    )  # fmt: skip

    def __init__(self, lane: SimulatedDraftLane) -> None:
        sequence, schedule = lane.sequence, lane.sequence.schedule
        self._lane = lane
        self._place = sequence.place
        self._draft_left = 0 if schedule.root_source == "exit" else schedule.num_speculative_tokens
        self._exit_left = schedule.num_speculative_tokens
        self._is_read = self._reads_last = not schedule.exit_features
        self._run: Run | None = None
        self._num_steps = 0
        self._arrives_s = 0.0
        self._has_joined = self._waits_for_exit = self._is_stopped = False
        self._verdict = sequence.verdict
        self._reply: Reply | None = None
        lane.machine.runs[DRAFT] = self._runs()
        if self._is_read:
            lane.send().callbacks.append(lane.resume)

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        sequence = self._lane.sequence
        self._arrives_s = sequence.send_exit_message()
        Timeout(sequence.env, self._arrives_s - sequence.env.now).callbacks.append(self._join)

    def take(self, verdict: Verdict) -> Event:
        """See `decoding.lanes.Branches`."""
        sequence = self._lane.sequence
        self._verdict = verdict
        reply = self._reply = Reply(sequence.env)
        # Messages arrive in the order of sending: the request does not overtake the exit's message.
        arrives_s = sequence.env.now + sequence.costs.draft_half_s
        self._waits_for_exit = not self._has_joined and self._arrives_s >= arrives_s
        if not self._waits_for_exit:
            self._lane.send().callbacks.append(self.stop)
        return reply

    def stop(self, _: Event | None = None) -> None:
        """The step under way is the last; then comes the next window, if one was asked for."""
        self._is_stopped = True
        self._notice()

    def _join(self, _: Event) -> None:
        self._has_joined = True
        self._is_stopped = self._is_stopped or self._waits_for_exit
        self._notice()

    def _notice(self) -> None:
        """A message has arrived."""
        lane, run = self._lane, self._run
        if run is None:
            lane.resume()
        elif run.what != "one_row":
            step_s = lane.sequence.costs.step_s[run.what][self._place]
            self._num_steps = lane.machine.cut(run, step_s)

    def _runs(self) -> Runs:
        """Steps until they are stopped, then what the next window still needs."""
        lane, sequence = self._lane, self._lane.sequence
        while not self._is_stopped:
            kind, self._num_steps = self._next_steps()
            if not self._num_steps:
                yield None
                continue
            run = self._run = Run(kind, self._num_steps * sequence.costs.step_s[kind][self._place])
            yield run
            self._run = None
            if self._num_steps:
                self._advance(kind, run)
        if self._reply is not None:
            left = {FROM_DRAFT: self._draft_left, FROM_EXIT: self._exit_left}
            steps = sequence.next_window(self._verdict, left, is_read=self._is_read)
            yield from lane.window(steps, self._reply)

    def _next_steps(self) -> tuple[StepKind, int]:
        """What the next steps compute, and how many such steps there are; none if nothing can be done."""
        if self._reads_last:
            return "one_row", 1
        if not self._has_joined:
            return "draft_roots", self._draft_left
        if self._draft_left:
            return "all_roots", self._draft_left
        if not self._is_read:
            return "window_and_roots", 1
        return "exit_roots", self._exit_left

    def _advance(self, kind: StepKind, run: Run) -> None:
        """The steps of a run have been done."""
        sequence, num_steps = self._lane.sequence, self._num_steps
        if sequence.has_spans:
            steps = sequence.equal_steps(kind, Work.BRANCH_STEP, num_steps, self._place)
            sequence.write_steps(steps, run.times_s(steps.steps_s))
        if kind in DRAFT_STEPS:
            self._draft_left -= num_steps
        if kind in EXIT_STEPS:
            self._exit_left -= num_steps
            self._is_read = True
        self._reads_last = False
