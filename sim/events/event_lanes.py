"""Lanes of the event world: what a method's verbs come to on the devices and links of a machine.

Equal steps are one run, which ends at the next boundary if a message arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from simpy import Event

from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, StepKind
from costs.ticks import one_in_ticks
from decoding.messages import ExitSignal, Verdict, Window
from decoding.trace import Work
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT
from sim.events.simulated_sequence import SimulatedSequence, Steps
from sim.machine.shared_memory import Run, Runs, Wake
from sim.machine.simulated_machine import SimulatedMachine

if TYPE_CHECKING:
    from sim.events.simulated_batch import SimulatedBatch

Decoded: TypeAlias = "SimulatedSequence | SimulatedBatch"
"""What lanes decode: one sequence, or several that go through their rounds together."""

NO_SIGNAL = ExitSignal(())
"""What the exit names is known to the acceptance model already; a method only passes the message on."""


class Reply(Event):
    """A handle whose time is not known yet when it is handed out."""

    def arrive_at(self, time_s: float, value: Any = None) -> None:
        """Let `value` arrive at this time, rounded to a whole tick."""
        self._ok = True
        self._value = value
        self.env.schedule(self, delay=one_in_ticks(time_s) - self.env.now)


class SimulatedLanes:
    """See `decoding.lanes.Lanes`; handles are SimPy events."""

    __slots__ = ("_sequence", "draft", "target")

    def __init__(self, sequence: SimulatedSequence) -> None:
        machine = SimulatedMachine(sequence)
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


class SimulatedTargetLane:
    """See `decoding.lanes.TargetLane`."""

    __slots__ = ("_decoded", "_machine")

    def __init__(self, decoded: Decoded, machine: SimulatedMachine) -> None:
        self._decoded = decoded
        self._machine = machine

    def verify(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the window is the one that the draft lane has replied."""
        self._decoded.begin_round()
        return self._verdict(self._decoded.segment_of(window))

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        self._decoded.begin_round()
        reply = Reply(self._decoded.env)
        self._machine.target.submit(self._segment(0, reply, NO_SIGNAL, is_verdict=False))
        return reply

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        return self.verify(window)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        return self._verdict(1)

    def _verdict(self, segment: int) -> Event:
        """Queue the segment after which the round is decided."""
        reply = Reply(self._decoded.env)
        self._machine.target.submit(self._segment(segment, reply, self._decoded.verdict, is_verdict=True))
        return reply

    def _segment(self, segment: int, reply: Reply, value: Any, *, is_verdict: bool) -> Runs:
        """A segment of the round; the driver acts on a verdict when it has done its own part."""
        decoded, costs = self._decoded, self._decoded.costs
        run = Run(decoded.segment_s(segment), segment)
        yield run
        if decoded.has_spans:
            decoded.write_segment(segment, run)
        replied_s = decoded.env.now + costs.target_half_s
        reply.arrive_at(replied_s + costs.round_overhead_s if is_verdict else replied_s, value)


class SimulatedDraftLane:
    """See `decoding.lanes.DraftLane`. It has one operation at a time, since methods wait for each window."""

    __slots__ = ("_branches", "decoded", "machine")

    def __init__(self, decoded: Decoded, machine: SimulatedMachine) -> None:
        self.decoded = decoded
        self.machine = machine
        self._branches: SimulatedBranches | None = None

    def rollout(self, verdict: Verdict | None = None) -> Event:
        """See `decoding.lanes.DraftLane`."""
        reply = Reply(self.decoded.env)
        told_in_s = 0.0 if verdict is None else self.tell(verdict)
        self.machine.draft.submit(self.window(self.decoded.rollout(verdict), reply), after_s=told_in_s)
        return reply

    def branch(self, window: Window) -> SimulatedBranches:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._branches = SimulatedBranches(self)
        return self._branches

    def finish(self) -> None:
        """The sequence has ended: the step under way is the last."""
        if self._branches is not None:
            self._branches.stop()

    def tell(self, verdict: Verdict) -> float:
        """Send a verdict to the lane: after how long it has crossed."""
        decoded, now_s = self.decoded, self.decoded.env.now
        return decoded.send(self.machine.to_draft, decoded.verdict_message(verdict), now_s) - now_s

    def window(self, steps: Steps | None, reply: Reply) -> Runs:
        """The steps that the next window still needs, after which it is replied."""
        decoded = self.decoded
        if steps is not None:
            run = Run(steps.seconds, steps.kind)
            yield run
            if decoded.has_spans:
                decoded.write_steps(steps, run)
        sent_s = decoded.env.now + decoded.costs.draft_half_s
        arrives_s = decoded.send(self.machine.to_target, decoded.window_message(), sent_s)
        reply.arrive_at(arrives_s, decoded.window)


class SimulatedBranches:
    """See `decoding.lanes.Branches`.

    All unfinished branches advance together: draft-sourced ones at once, exit-sourced ones when the exit's message has
    arrived; with exit features the first step reads the whole window again. See `sim.arrays.mirror_round` for the same
    in arrays. Messages are noticed at the first boundary at or after their arrival, and at once if the lane is idle.
    """

    __slots__ = (
        "_draft_left", "_exit_left", "_has_joined", "_is_read", "_is_stopped", "_lane", "_most", "_num_steps",
        "_plan", "_reads_first", "_reply", "_run", "_seconds_of", "_step_s", "_verdict",
    )  # fmt: skip

    def __init__(self, lane: SimulatedDraftLane) -> None:
        decoded, schedule = lane.decoded, lane.decoded.schedule
        self._lane = lane
        self._seconds_of = decoded.branch_step_s()
        self._step_s = 0.0
        self._plan = decoded.costs.plan
        self._exit_left = self._most = self._plan.branch_steps
        self._draft_left = 0 if schedule.root_source == "exit" else self._most
        self._is_read, self._reads_first = not schedule.exit_features, decoded.reads_first
        self._run: Run | None = None
        self._num_steps = 0
        self._has_joined = self._is_stopped = False
        self._verdict = decoded.verdict
        self._reply: Reply | None = None
        lane.machine.draft.submit(self._runs())

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        lane, decoded = self._lane, self._lane.decoded
        now_s = decoded.env.now
        arrives_s = decoded.send(lane.machine.to_draft, decoded.exit_message(), now_s)
        Wake(decoded.env, arrives_s - now_s + decoded.costs.draft_half_s, self._join)

    def take(self, verdict: Verdict) -> Event:
        """See `decoding.lanes.Branches`."""
        decoded = self._lane.decoded
        self._verdict = verdict
        reply = self._reply = Reply(decoded.env)
        told_in_s = self._lane.tell(verdict)
        Wake(decoded.env, told_in_s + decoded.costs.draft_half_s, self.stop)
        return reply

    def stop(self, _: Event | None = None) -> None:
        """The step under way is the last; then comes the next window, if one was asked for."""
        self._is_stopped = True
        self._notice()

    def _join(self, _: Event) -> None:
        self._has_joined = True
        self._notice()

    def _notice(self) -> None:
        """A message has arrived."""
        lane, run = self._lane, self._run
        if run is None:
            lane.machine.draft.resume()
        elif run.what != "last_drafted":
            self._num_steps = lane.machine.memory.cut(run, self._step_s)

    def _runs(self) -> Runs:
        """Steps until they are stopped, then what the next window still needs."""
        lane, decoded = self._lane, self._lane.decoded
        while not self._is_stopped:
            kind, self._num_steps = self._next_steps()
            if not self._num_steps:
                yield None
                continue
            self._step_s = self._seconds_of(kind)
            run = self._run = Run(self._num_steps * self._step_s, kind)
            yield run
            self._run, num_steps = None, self._num_steps
            if not num_steps:
                continue
            if decoded.has_spans:
                done = Steps.equal(kind, Work.BRANCH_STEP, num_steps, self._step_s, self._plan.step_rows[kind])
                decoded.write_steps(done, run)
            self._reads_first = False
            if kind in DRAFT_STEPS:
                self._draft_left -= num_steps
            if kind in EXIT_STEPS:
                self._exit_left -= num_steps
                self._is_read = True
        if self._reply is not None:
            left = {FROM_DRAFT: self._draft_left, FROM_EXIT: self._exit_left}
            steps = decoded.next_window(self._verdict, left, is_read=self._is_read)
            yield from lane.window(steps, self._reply)

    def _next_steps(self) -> tuple[StepKind, int]:
        """What the next steps compute, and how many such steps there are; none if nothing can be done."""
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
        if not self._plan.branch_guesses:
            return kind, left
        is_first = left == self._most  # it has no guesses yet, and goes alone
        return self._plan.in_step(kind, is_first=is_first), 1 if is_first else left
