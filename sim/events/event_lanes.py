"""Lanes of the event world: what a method's verbs come to on the devices and links of a machine room.

Equal steps are one run, which ends at the next boundary if a message arrives.
"""

from __future__ import annotations

from typing import Any

from simpy import Event

from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, StepKind
from decoding.messages import ExitSignal, Verdict, Window
from decoding.trace import Work
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT
from sim.events.machine_room import MachineRoom
from sim.events.simulated_sequence import SimulatedSequence, Steps
from sim.machine.memory_pool import Run, Runs
from sim.machine.reply import Reply
from sim.machine.wake import Wake

NO_SIGNAL = ExitSignal(())
"""What the exit names is known to the acceptance model already; a method only passes the message on."""


class SimulatedLanes:
    """See `decoding.lanes.Lanes`; handles are SimPy events."""

    __slots__ = ("_sequence", "draft", "target")

    def __init__(self, sequence: SimulatedSequence) -> None:
        room = MachineRoom(sequence)
        self._sequence = sequence
        self.target = SimulatedTargetLane(sequence, room)
        self.draft = SimulatedDraftLane(sequence, room)

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

    __slots__ = ("_room", "_sequence")

    def __init__(self, sequence: SimulatedSequence, room: MachineRoom) -> None:
        self._sequence = sequence
        self._room = room

    def verify(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the window is the one that the draft lane has replied."""
        self._begin_round()
        return self._verdict(self._sequence.costs.plan.widths.index(len(window.tokens)))

    def prefix(self, window: Window, exit_layer: int) -> Event:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        self._begin_round()
        reply = Reply(self._sequence.env)
        self._room.target.submit(self._segment(0, reply, NO_SIGNAL, is_verdict=False))
        return reply

    def stream(self, window: Window) -> Event:
        """See `decoding.lanes.TargetLane`; the pass without a window is the shorter one."""
        return self.verify(window)

    def suffix(self) -> Event:
        """See `decoding.lanes.TargetLane`."""
        return self._verdict(1)

    def _begin_round(self) -> None:
        self._sequence.trace.begin_round(self._sequence.env.now)

    def _verdict(self, segment: int) -> Event:
        """Queue the segment after which the round is decided."""
        reply = Reply(self._sequence.env)
        self._room.target.submit(self._segment(segment, reply, self._sequence.verdict, is_verdict=True))
        return reply

    def _segment(self, segment: int, reply: Reply, value: Any, *, is_verdict: bool) -> Runs:
        """A segment of the round; the driver acts on a verdict when the host has handled it."""
        sequence, costs = self._sequence, self._sequence.costs
        run = Run(costs.segments_s[segment][sequence.place], segment)
        yield run
        if sequence.has_spans:
            sequence.write_segment(segment, run)
        replied_s = sequence.env.now + costs.target_half_s
        reply.arrive_at(self._room.host.handled_s(replied_s) if is_verdict else replied_s, value)


class SimulatedDraftLane:
    """See `decoding.lanes.DraftLane`. It has one operation at a time, since methods wait for each window."""

    __slots__ = ("_branches", "room", "sequence")

    def __init__(self, sequence: SimulatedSequence, room: MachineRoom) -> None:
        self.sequence = sequence
        self.room = room
        self._branches: SimulatedBranches | None = None

    def rollout(self, verdict: Verdict | None = None) -> Event:
        """See `decoding.lanes.DraftLane`."""
        reply = Reply(self.sequence.env)
        told_in_s = 0.0 if verdict is None else self.tell(verdict)
        self.room.draft.submit(self.window(self.sequence.rollout(verdict), reply), after_s=told_in_s)
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
        sequence, num_accepted = self.sequence, verdict.num_accepted
        num_bytes, now_s = sequence.costs.messages.verdict_bytes[num_accepted], sequence.env.now
        return sequence.send(self.room.to_draft, num_bytes, now_s, num_accepted + 1) - now_s

    def window(self, steps: Steps | None, reply: Reply) -> Runs:
        """The steps that the next window still needs, after which it is replied."""
        sequence, costs = self.sequence, self.sequence.costs
        if steps is not None:
            run = Run(steps.seconds, steps.kind)
            yield run
            if sequence.has_spans:
                sequence.write_steps(steps, run)
        window, sent_s = sequence.window, sequence.env.now + costs.draft_half_s
        num_drafted = len(window.tokens)
        num_bytes = costs.messages.window_bytes[num_drafted]
        reply.arrive_at(sequence.send(self.room.to_target, num_bytes, sent_s, num_drafted), window)


class SimulatedBranches:
    """See `decoding.lanes.Branches`.

    All unfinished branches advance together: draft-sourced ones at once, exit-sourced ones when the exit's message has
    arrived; with exit features the first step reads the whole window again. See `sim.arrays.mirror_round` for the same
    in arrays. Messages are noticed at the first boundary at or after their arrival, and at once if the lane is idle.
    """

    __slots__ = (
        "_draft_left", "_exit_left", "_has_joined", "_is_read", "_is_stopped", "_lane", "_most", "_num_steps",
        "_place", "_plan", "_reads_last", "_reply", "_run", "_verdict",
    )  # fmt: skip

    def __init__(self, lane: SimulatedDraftLane) -> None:
        sequence, schedule = lane.sequence, lane.sequence.schedule
        self._lane = lane
        self._place = sequence.place
        self._plan = sequence.costs.plan
        self._exit_left = self._most = self._plan.branch_steps
        self._draft_left = 0 if schedule.root_source == "exit" else self._most
        self._is_read = self._reads_last = not schedule.exit_features
        self._run: Run | None = None
        self._num_steps = 0
        self._has_joined = self._is_stopped = False
        self._verdict = sequence.verdict
        self._reply: Reply | None = None
        lane.room.draft.submit(self._runs())

    def join(self, signal: ExitSignal) -> None:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        lane, sequence = self._lane, self._lane.sequence
        costs, now_s = sequence.costs, sequence.env.now
        arrives_s = sequence.send(lane.room.to_draft, costs.messages.exit_bytes, now_s, self._plan.segments[0].rows)
        Wake(sequence.env, arrives_s - now_s + costs.draft_half_s, self._join)

    def take(self, verdict: Verdict) -> Event:
        """See `decoding.lanes.Branches`."""
        sequence = self._lane.sequence
        self._verdict = verdict
        reply = self._reply = Reply(sequence.env)
        told_in_s = self._lane.tell(verdict)
        Wake(sequence.env, told_in_s + sequence.costs.draft_half_s, self.stop)
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
            lane.room.draft.resume()
        elif run.what != "last_drafted":
            step_s = lane.sequence.costs.step_s[run.what][self._place]
            self._num_steps = lane.room.draft.cut(run, step_s)

    def _runs(self) -> Runs:
        """Steps until they are stopped, then what the next window still needs."""
        lane, sequence = self._lane, self._lane.sequence
        step_s, place = sequence.costs.step_s, self._place
        while not self._is_stopped:
            kind, self._num_steps = self._next_steps()
            if not self._num_steps:
                yield None
                continue
            run = self._run = Run(self._num_steps * step_s[kind][place], kind)
            yield run
            self._run, num_steps = None, self._num_steps
            if not num_steps:
                continue
            if sequence.has_spans:
                sequence.write_steps(sequence.equal_steps(kind, Work.BRANCH_STEP, num_steps, place), run)
            self._reads_last = False
            if kind in DRAFT_STEPS:
                self._draft_left -= num_steps
            if kind in EXIT_STEPS:
                self._exit_left -= num_steps
                self._is_read = True
        if self._reply is not None:
            left = {FROM_DRAFT: self._draft_left, FROM_EXIT: self._exit_left}
            steps = sequence.next_window(self._verdict, left, is_read=self._is_read)
            yield from lane.window(steps, self._reply)

    def _next_steps(self) -> tuple[StepKind, int]:
        """What the next steps compute, and how many such steps there are; none if nothing can be done."""
        if self._reads_last:
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
