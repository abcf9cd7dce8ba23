"""Lanes of the event world: run a method's lane calls on simulated devices and links, and write their spans.

Consecutive equal steps are simulated as one `Job`, which is cut at a step boundary when a message arrives.
"""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from simpy import Event

from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, LATER, StepKind
from costs.ticks import one_in_ticks
from decoding.trace import Span, Trace, Work
from sim.acceptance.branch_hits import FROM_DRAFT, FROM_EXIT
from sim.events.round_costs import RoundCosts, Step
from sim.machine import Job, Jobs, Link, Path, SharedMemory, SimulatedDevice, Wake

if TYPE_CHECKING:
    from sim.events.simulated_batch import SimulatedBatch


class PendingReply(Event):
    """A handle of an operation whose end is not known yet when the handle is returned."""

    def arrive_at(self, time_s: float) -> None:
        """Schedule the reply at `time_s`, rounded to a whole tick."""
        self._ok = True
        self._value: Any = None
        self.env.schedule(self, delay=one_in_ticks(time_s) - self.env.now)


class Steps(NamedTuple):
    """Consecutive steps of a lane of one kind of work; the first one may also read unread committed tokens."""

    work: Work
    steps: Sequence[Step]

    @property
    def seconds(self) -> float:
        """Seconds of all steps."""
        return sum([step.seconds for step in self.steps])


class WrittenSpans:
    """Writes the spans of one trace, each at the end of its work."""

    def __init__(self, trace: Trace, costs: RoundCosts) -> None:
        self._trace, self._costs = trace, costs

    def write(self, lane: str, steps: Steps, job: Job) -> None:
        """Write the spans of a job's steps, and of the collectives in them."""
        done_s, times_s = 0.0, job.end_times_s([step.seconds for step in steps.steps])
        for (start_s, end_s), step in zip(pairwise(times_s), steps.steps, strict=True):
            self._write(lane, steps.work, start_s, end_s, step.rows)
            self._write_collectives(lane, job, done_s, step)
            done_s += step.seconds

    def send(self, path: Path, num_bytes: float, rows: int, sent_s: float) -> float:
        """Send a message over the links of a path and write a span for each; return when it arrives."""
        for link in path:
            start_s, sent_s = max(sent_s, link.free_s), link.send(num_bytes, sent_s)
            self._write(link.name, Work.TRANSFER, start_s, sent_s, rows)
        return sent_s

    def finish(self) -> None:
        """Drop spans that start after the last commit."""
        trace = self._trace
        trace.spans[:] = [span for span in trace.spans if span.start_s < trace.decode_s]

    def _write(self, lane: str, work: Work, start_s: float, end_s: float, rows: int) -> None:
        """Write a span; it belongs to the round with the first commit after the span's start."""
        trace = self._trace
        round_index = len(trace.rounds)
        while round_index and trace.rounds[round_index - 1].end_s > start_s:
            round_index -= 1
        trace.spans.append(Span(lane, work, start_s, end_s, round_index, rows))

    def _write_collectives(self, lane: str, job: Job, done_s: float, step: Step) -> None:
        collectives_s = self._costs.collectives_s(lane, step)
        if not collectives_s:
            return
        computed_s = (step.seconds - sum(collectives_s)) / len(collectives_s)
        pieces_s = [done_s, *chain(*((computed_s, seconds) for seconds in collectives_s))]
        times_s = job.end_times_s(pieces_s)[2:]
        for start_s, end_s in zip(times_s[::2], times_s[1::2], strict=True):
            if end_s > start_s:
                self._write(f"{lane}->{lane}", Work.TRANSFER, start_s, end_s, step.rows)


class SimulatedLanes:
    """The operations of both lanes for all sequences of a batch, on a simulated machine.

    The machine has a device per lane (one for both if the schedule is pooled), their memory, and the paths between
    them. The draft has one operation at a time, since methods wait for each window.
    """

    def __init__(self, batch: "SimulatedBatch") -> None:
        costs, messages = batch.costs, batch.costs.messages
        self.batch = batch
        self.memory = SharedMemory(batch.env, costs.contention.slowdown_of_two, has_marks=batch.spans is not None)
        self._target = SimulatedDevice(self.memory, half_s=costs.target_half_s)
        self.draft = (
            self._target if batch.schedule.is_pooled else SimulatedDevice(self.memory, half_s=costs.draft_half_s)
        )
        self.to_draft, self._to_target = tuple(map(Link, messages.to_draft)), tuple(map(Link, messages.to_target))

    def segment(self, segment: int, *, is_verdict: bool) -> Event:
        """Queue a segment of the target and return its reply; a verdict's reply includes the driver's overhead."""
        batch, costs, reply = self.batch, self.batch.costs, PendingReply(self.batch.env)

        def jobs() -> Jobs:
            plan = costs.plan
            yield from self._as_job(plan.target_lane, Steps(plan.segments[segment].work, [batch.segment(segment)]))
            reply.arrive_at(batch.env.now + costs.target_half_s + costs.round_overhead_s * is_verdict)

        self._target.submit(jobs())
        return reply

    def rollout(self, *, is_first: bool) -> Event:
        """Draft the next windows and return their reply; all rollouts but the first wait for the verdict message."""
        reply = PendingReply(self.batch.env)
        crossing_s = 0.0 if is_first else self.send_verdicts()
        self.draft.submit(self.window_jobs(self.batch.rollout(is_first=is_first), reply), after_s=crossing_s)
        return reply

    def send_verdicts(self) -> float:
        """Send the verdicts to the draft; return the seconds until they arrive."""
        batch, now_s = self.batch, self.batch.env.now
        return batch.send(self.to_draft, batch.verdict_message(), now_s) - now_s

    def window_jobs(self, steps: Steps | None, reply: PendingReply) -> Jobs:
        """Yield the steps that the next windows still need, then reply with them."""
        batch = self.batch
        if steps is not None:
            yield from self._as_job(batch.costs.plan.draft_lane, steps)
        sent_s = batch.env.now + batch.costs.draft_half_s
        reply.arrive_at(batch.send(self._to_target, batch.window_message(), sent_s))

    def _as_job(self, lane: str, steps: Steps) -> Jobs:
        """Yield steps that cannot be interrupted as one job, and write their spans when it has ended."""
        job = Job(steps.seconds, steps.steps[-1].bytes_per_s)
        yield job
        if self.batch.spans is not None:
            self.batch.spans.write(lane, steps, job)


class SimulatedBranches:
    """Implements `decoding.lanes.Branches` for a batch; `sim.arrays.mirror_round` computes the same with arrays.

    All unfinished branches advance together: those of the draft's roots immediately, those of the exit's roots when the
    exit message has arrived. With exit features the first step then reads the whole window again. A message takes
    effect at the next step boundary, or on arrival if the lane is idle.
    """

    def __init__(self, lanes: SimulatedLanes) -> None:
        batch, schedule = lanes.batch, lanes.batch.schedule
        self._lanes = lanes
        self._step_of = batch.branch_steps()
        self._step_s = 0.0
        self._plan = batch.costs.plan
        self._exit_left = self._num_each = self._plan.branch_steps
        self._draft_left = 0 if schedule.root_source == "exit" else self._num_each
        self._is_read, self._reads_first = not schedule.exit_features, any(batch.first_rows())
        self._job: Job | None = None
        self._num_steps = 0
        self._has_joined = self._is_stopped = False
        self._reply: PendingReply | None = None
        lanes.draft.submit(self._jobs())

    def join(self) -> None:
        """Send the exit messages; branches of the exit's roots start when they arrive."""
        batch, now_s = self._lanes.batch, self._lanes.batch.env.now
        arrives_s = batch.send(self._lanes.to_draft, batch.exit_message(), now_s)
        Wake(batch.env, arrives_s - now_s + batch.costs.draft_half_s, self._join)

    def take(self) -> Event:
        """Return the reply with the next windows."""
        batch = self._lanes.batch
        reply = self._reply = PendingReply(batch.env)
        Wake(batch.env, self._lanes.send_verdicts() + batch.costs.draft_half_s, self.stop)
        return reply

    def stop(self, _: Event | None = None) -> None:
        """Stop after the step under way; the next windows follow if they were requested (`take`)."""
        self._is_stopped = True
        self._notice()

    def _join(self, _: Event) -> None:
        self._has_joined = True
        self._notice()

    def _notice(self) -> None:
        """React to an arrived message: wake an idle lane, or cut the job under way."""
        if self._job is None:
            self._lanes.draft.resume()
        elif not self._reads_first:
            self._num_steps = self._lanes.memory.cut(self._job, self._step_s)

    def _jobs(self) -> Jobs:
        """Yield branch steps until they are stopped, then the steps that the next windows still need."""
        batch = self._lanes.batch
        while not self._is_stopped:
            kind, self._num_steps = self._next_steps()
            if not self._num_steps:
                yield None
                continue
            step = self._step_of(kind)
            self._step_s = step.seconds
            job = self._job = Job(self._num_steps * step.seconds, step.bytes_per_s)
            yield job
            self._job, num_steps = None, self._num_steps
            if not num_steps:
                continue
            if batch.spans is not None:
                batch.spans.write(self._plan.draft_lane, Steps(Work.BRANCH_STEP, [step] * num_steps), job)
            self._reads_first = False
            if kind in DRAFT_STEPS:
                self._draft_left -= num_steps
            if kind in EXIT_STEPS:
                self._exit_left -= num_steps
                self._is_read = True
        if self._reply is not None:
            num_done = {FROM_DRAFT: self._num_each - self._draft_left, FROM_EXIT: self._num_each - self._exit_left}
            yield from self._lanes.window_jobs(batch.next_windows(num_done, is_read=self._is_read), self._reply)

    def _next_steps(self) -> tuple[StepKind, int]:
        """Return the kind of the next steps and their number; 0 if there is nothing to do before the next message."""
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
        return (kind, 1) if left == self._num_each else (LATER[kind], left)
