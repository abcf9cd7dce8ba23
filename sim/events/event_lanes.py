"""Lanes of the event world: a method's lane calls on the devices and links of a machine.

Consecutive equal steps are simulated as one `Run`, which is cut at a step boundary when a message arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simpy import Event

from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, LATER, StepKind
from costs.ticks import one_in_ticks
from decoding.trace import Work
from sim.acceptance.branch_hits import FROM_DRAFT, FROM_EXIT
from sim.events.written_spans import Steps
from sim.machine.device import Device
from sim.machine.link import Link
from sim.machine.shared_memory import Run, Runs, SharedMemory, Wake

if TYPE_CHECKING:
    from sim.events.simulated_batch import SimulatedBatch


class Reply(Event):
    """A handle whose time is not known yet when it is handed out."""

    def arrive_at(self, time_s: float) -> None:
        """Let it arrive at this time, rounded to a whole tick."""
        self._ok = True
        self._value: Any = None
        self.env.schedule(self, delay=one_in_ticks(time_s) - self.env.now)


class SimulatedLanes:
    """The operations of both lanes, for all sequences of a batch at once, on the machine of its schedule.

    That is a device for each, one and the same where the schedule is pooled, their memory, and the routes between them.
    The draft has one operation at a time, since methods wait for each window.
    """

    def __init__(self, batch: SimulatedBatch) -> None:
        costs, messages = batch.costs, batch.costs.messages
        self.batch = batch
        self.memory = SharedMemory(batch.env, costs.contention.slowdown_of_two, has_marks=batch.spans is not None)
        self._target = Device(self.memory, half_s=costs.target_half_s)
        self.draft = self._target if batch.schedule.is_pooled else Device(self.memory, half_s=costs.draft_half_s)
        self.to_draft, self._to_target = tuple(map(Link, messages.to_draft)), tuple(map(Link, messages.to_target))

    def segment(self, segment: int, *, is_verdict: bool) -> Event:
        """Queue a segment of the target and return its reply; `is_verdict` is whether it decides the round."""
        reply = Reply(self.batch.env)
        self._target.submit(self._segment_runs(segment, reply, is_verdict=is_verdict))
        return reply

    def _segment_runs(self, segment: int, reply: Reply, *, is_verdict: bool) -> Runs:
        """Yield the run of a segment, then reply; a verdict is acted on after the driver's own time."""
        batch, costs = self.batch, self.batch.costs
        step = batch.segment(segment)
        run = Run(step.seconds, step.bytes_per_s)
        yield run
        if batch.spans is not None:
            batch.spans.write_segment(segment, step, run)
        replied_s = batch.env.now + costs.target_half_s
        reply.arrive_at(replied_s + costs.round_overhead_s if is_verdict else replied_s)

    def rollout(self, *, is_first: bool) -> Event:
        """Draft the next windows and return their reply; all but the first wait for the verdicts to cross."""
        reply = Reply(self.batch.env)
        told_in_s = 0.0 if is_first else self.tell()
        self.draft.submit(self.window_runs(self.batch.rollout(is_first=is_first), reply), after_s=told_in_s)
        return reply

    def tell(self) -> float:
        """Send the verdicts to the draft; return the seconds until they have crossed."""
        batch, now_s = self.batch, self.batch.env.now
        return batch.send(self.to_draft, batch.verdict_message(), now_s) - now_s

    def window_runs(self, steps: Steps | None, reply: Reply) -> Runs:
        """Yield the steps that the next windows still need, then reply with them."""
        batch = self.batch
        if steps is not None:
            run = Run(steps.seconds, steps.steps[-1].bytes_per_s)
            yield run
            if batch.spans is not None:
                batch.spans.write_steps(steps, run)
        sent_s = batch.env.now + batch.costs.draft_half_s
        reply.arrive_at(batch.send(self._to_target, batch.window_message(), sent_s))


class SimulatedBranches:
    """See `decoding.lanes.Branches`.

    All unfinished branches advance together: draft-sourced ones at once, exit-sourced ones when the exit's message has
    arrived; with exit features the first step reads the whole window again. Messages are noticed at the first step
    boundary at or after their arrival, and at once if the lane is idle. `sim.arrays.mirror_round` does the same in
    arrays.
    """

    __slots__ = (
        "_draft_left", "_exit_left", "_has_joined", "_is_read", "_is_stopped", "_lanes", "_most", "_num_steps",
        "_plan", "_reads_first", "_reply", "_run", "_step_of", "_step_s",
    )  # fmt: skip

    def __init__(self, lanes: SimulatedLanes) -> None:
        batch, schedule = lanes.batch, lanes.batch.schedule
        self._lanes = lanes
        self._step_of = batch.branch_steps()
        self._step_s = 0.0
        self._plan = batch.costs.plan
        self._exit_left = self._most = self._plan.branch_steps
        self._draft_left = 0 if schedule.root_source == "exit" else self._most
        self._is_read, self._reads_first = not schedule.exit_features, batch.reads_first
        self._run: Run | None = None
        self._num_steps = 0
        self._has_joined = self._is_stopped = False
        self._reply: Reply | None = None
        lanes.draft.submit(self._runs())

    def join(self) -> None:
        """Send the exits' signals; branches join when they arrive."""
        batch, now_s = self._lanes.batch, self._lanes.batch.env.now
        arrives_s = batch.send(self._lanes.to_draft, batch.exit_message(), now_s)
        Wake(batch.env, arrives_s - now_s + batch.costs.draft_half_s, self._join)

    def take(self) -> Event:
        """Return the reply with the next windows."""
        batch = self._lanes.batch
        reply = self._reply = Reply(batch.env)
        Wake(batch.env, self._lanes.tell() + batch.costs.draft_half_s, self.stop)
        return reply

    def stop(self, _: Event | None = None) -> None:
        """End after the step under way; then come the next windows, if they were asked for."""
        self._is_stopped = True
        self._notice()

    def _join(self, _: Event) -> None:
        self._has_joined = True
        self._notice()

    def _notice(self) -> None:
        """Act on a message that has arrived: wake an idle lane, or cut the run under way."""
        if self._run is None:
            self._lanes.draft.resume()
        elif not self._reads_first:
            self._num_steps = self._lanes.memory.cut(self._run, self._step_s)

    def _runs(self) -> Runs:
        """Yield steps until they are stopped, then what the next windows still need."""
        batch = self._lanes.batch
        while not self._is_stopped:
            kind, self._num_steps = self._next_steps()
            if not self._num_steps:
                yield None
                continue
            step = self._step_of(kind)
            self._step_s = step.seconds
            run = self._run = Run(self._num_steps * step.seconds, step.bytes_per_s)
            yield run
            self._run, num_steps = None, self._num_steps
            if not num_steps:
                continue
            if batch.spans is not None:
                batch.spans.write_steps(Steps(Work.BRANCH_STEP, [step] * num_steps), run)
            self._reads_first = False
            if kind in DRAFT_STEPS:
                self._draft_left -= num_steps
            if kind in EXIT_STEPS:
                self._exit_left -= num_steps
                self._is_read = True
        if self._reply is not None:
            num_done = {FROM_DRAFT: self._most - self._draft_left, FROM_EXIT: self._most - self._exit_left}
            yield from self._lanes.window_runs(batch.next_windows(num_done, is_read=self._is_read), self._reply)

    def _next_steps(self) -> tuple[StepKind, int]:
        """Return the kind of the next steps and their number; 0 if nothing can be done."""
        if self._reads_first:
            return "last_drafted", 1
        kind: StepKind
        if not self._has_joined:
            kind, left = "draft_roots", self._draft_left
        elif self._draft_left:
            kind, left = "all_roots", self._draft_left
        elif self._is_read:
            kind, left = "exit_roots", self._exit_left
        else:
            return "window_and_roots", 1
        return (kind, 1) if left == self._most else (LATER[kind], left)
