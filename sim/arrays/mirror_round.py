"""A mirror round up to the point where the draft notices the verdict, at every context at once.

Until then nothing depends on what the models say: the target computes its segments, the draft its branch steps,
and each slows the other while both compute. So the round is solved once per context, and what the sequences decide
(which branch is taken, how much is left of it) is looked up afterwards.

The draft's work comes in runs of equal steps. Each run is laid next to what is left of the target's segments:
both advance at their own slowdown until one of them ends, then the other goes on alone. Times are seconds from
the moment when the driver issues the round's operations; arrays are over contexts.

An example. Alone, prefix and suffix take 4 s and 2 s, the draft's first step, which reads the window's last token, 1 s,
the two steps that its window takes for the exit's roots 2 s each, the message 1 s, and starting and dispatching
nothing; at once, all takes twice as long ::

    seconds    0           2           5           6           8           9           11
    target     | prefix    | prefix    | suffix    | suffix    |
                 1 s done    3 s alone   1 s alone   1 s done
    draft      | last row  | idle      | message   | roots     | roots     | (roots)   |
                 1 s done                            1 s done    1 s alone   2 s alone

The request for a window comes at 8, within the first of the two steps, and is noticed at 9. If nothing stopped them the
steps would end at 11, so floor((11 - 8) / 2) = 1 of them has not begun by then.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costs.contention import Slowdown
from costs.cost_model import Floats, Ints
from costs.durations import Durations
from costs.lane_messages import crossing_s, second_arrival_s
from costs.round_plan import DRAFT_STEPS, EXIT_STEPS, LATER, StepKind
from costs.ticks import in_ticks
from decoding.schedule import Schedule
from sim.acceptance.branch_hits import FROM_DRAFT, FROM_EXIT

_FOREVER: Floats = np.array(np.inf)
_NO_SLOWDOWN = Slowdown(np.ones(1), np.ones(1))


class OverlapTimeline(NamedTuple):
    """A mirror round as it goes whatever the verdict is, [contexts].

    Attributes:
        channel_s: how long the verdict is on its way to the draft's lane, and waits for an exit message before it.
        boundary_s: how long it then takes to the end of the step under way, when the draft acts on it.
        num_steps: steps done then in the branches of each source, [sources, contexts]; none for `MISS`.
        is_read: whether the draft has read the window (with features: read it again with theirs).
        slowed_s: what the draft adds to the target's segments, [segments, contexts].
        hidden_s, busy_s: draft time while the target computes, and in all, until then.
        last_busy_s: draft time in all in a last round, in which no step begins after the commit.
    """

    channel_s: Floats
    boundary_s: Floats
    num_steps: Ints
    is_read: NDArray[np.bool_]
    slowed_s: Floats
    hidden_s: Floats
    busy_s: Floats
    last_busy_s: Floats


def overlap_timeline(schedule: Schedule, durations: Durations) -> OverlapTimeline:
    """Solve one mirror round at every context of `durations`."""
    lanes = _TwoLanes(durations)
    half, messages = durations.draft_half_s, durations.messages
    exit_s = float(crossing_s(messages.to_draft, np.array(messages.exit_bytes)))
    lanes.idle(half)
    arrival_s = _branch(lanes, schedule, durations.target_half_s + exit_s + half)
    commit_s = lanes.end_s(len(durations.segments_s)) + (durations.target_half_s + durations.round_overhead_s)
    asked_s = commit_s + half
    # Messages arrive in the order of sending: the verdict does not overtake the exit's message.
    exit_sent_s = lanes.end_s(1) + durations.target_half_s if schedule.uses_exit else np.zeros_like(commit_s)
    told_bytes = messages.exit_bytes, messages.verdict_bytes[0]
    take_s = second_arrival_s(messages.to_draft, told_bytes, (exit_sent_s, commit_s)) + half
    noticed_s, busy_s, last_busy_s = take_s, lanes.busy_s, lanes.busy_s
    num_steps = np.zeros((3, len(take_s)))
    is_read = np.ones(len(take_s), dtype=np.bool_)
    for run in lanes.runs:
        step_s = durations.step_s[run.kind]
        not_begun = run.not_begun(take_s, step_s, arrival_s)
        begun = run.num_steps - not_begun
        noticed_s = np.maximum(noticed_s, np.where(begun > 0, run.end_s - not_begun * step_s, 0.0))
        busy_s = busy_s - not_begun * step_s
        last_busy_s = last_busy_s - run.not_begun(commit_s, step_s, arrival_s) * step_s
        if run.kind in DRAFT_STEPS:
            num_steps[FROM_DRAFT] += begun
        if run.kind in EXIT_STEPS:
            num_steps[FROM_EXIT] += begun
        if run.kind == "window_and_roots":
            is_read = begun > 0
    return OverlapTimeline(
        channel_s=take_s - asked_s,
        boundary_s=in_ticks(noticed_s) - take_s,
        num_steps=num_steps.astype(np.int64),
        is_read=is_read,
        slowed_s=np.array([lanes.segment_s(index) - alone for index, alone in enumerate(durations.segments_s)]),
        hidden_s=lanes.hidden_s,
        busy_s=busy_s,
        last_busy_s=last_busy_s,
    )


def _branch(lanes: "_TwoLanes", schedule: Schedule, message_s: float) -> Floats | None:
    """Run the branch operation, unhindered by any verdict; return when the exit message arrives, if any."""
    num_steps = lanes.durations.plan.branch_steps
    if not schedule.exit_features:
        lanes.run("last_drafted", 1)
    if schedule.root_source == "hybrid":
        return _branch_with_both(lanes, num_steps, message_s)
    first: StepKind = "draft_roots"
    arrival_s = None
    if schedule.uses_exit:
        first = "window_and_roots" if schedule.exit_features else "exit_roots"
        arrival_s = lanes.end_s(1) + message_s
        lanes.idle(np.maximum(arrival_s - lanes.now_s, 0.0))
    lanes.run(first, 1)
    lanes.run(LATER.get(first, "exit_later"), num_steps - 1)
    return arrival_s


def _branch_with_both(lanes: "_TwoLanes", num_steps: int, message_s: float) -> Floats:
    """Run the steps of draft-sourced roots, and of the exit's when its message has come; return when that arrives."""
    draft_steps: Floats = np.zeros_like(lanes.now_s)
    in_order: tuple[tuple[StepKind, int], ...] = (("draft_roots", 1), ("draft_later", num_steps - 1))
    for kind, most in in_order:
        step_s = lanes.durations.step_s[kind]
        work_s = most * step_s
        left_s = lanes.together(kind, work_s, num_segments=1)
        # where this segment has not ended the work has, and nothing is left to be done until the message arrives
        left_s = lanes.until(kind, left_s, np.maximum(lanes.end_s(1) + message_s - lanes.now_s, 0.0))
        begun = _between(np.ceil((work_s - left_s) / step_s), most)
        lanes.finish(kind, begun * step_s - (work_s - left_s))
        lanes.runs.append(_Run(kind, begun, lanes.now_s))
        draft_steps = draft_steps + begun
    arrival_s = lanes.end_s(1) + message_s
    lanes.idle(np.maximum(arrival_s - lanes.now_s, 0.0))
    none, every = draft_steps == 0, draft_steps == num_steps
    lanes.run("all_roots", none)
    lanes.run("all_later", num_steps - draft_steps - none)
    lanes.run("exit_roots", every)
    lanes.run("exit_later", draft_steps - every)
    return arrival_s


class _Run(NamedTuple):
    """Equal steps in a row, and when the last one ends if nothing stops them."""

    kind: StepKind
    num_steps: int | Floats
    end_s: Floats

    def not_begun(self, request_s: Floats, step_s: Floats, arrival_s: Floats | None) -> Floats:
        """Return the steps not begun by a request to stop; none of the exit's roots begin if its message is later."""
        count = _between(np.floor((self.end_s - request_s) / step_s), self.num_steps)
        if self.kind in EXIT_STEPS and arrival_s is not None:
            count = np.where(arrival_s >= request_s, self.num_steps, count)
        return count


class _TwoLanes:
    """Both lanes from the start of a round. The target goes through half a dispatch and its segments.

    The draft's lane has been followed until `now_s`; of each segment `_left_s` is left to do, in time alone, and what
    is done took `_taken_s`.
    """

    def __init__(self, durations: Durations) -> None:
        nothing = np.zeros(len(durations.segments_s[0]))
        self.durations = durations
        self.now_s = self.hidden_s = self.busy_s = nothing
        self.runs: list[_Run] = []
        self._left_s: list[Floats] = [nothing + durations.target_half_s, *durations.segments_s]
        self._taken_s = [nothing] * len(self._left_s)

    def segment_s(self, index: int) -> Floats:
        """Return how long a target segment takes if the draft stays idle from now on."""
        return self._taken_s[index + 1] + self._left_s[index + 1]

    def end_s(self, num_segments: int) -> Floats:
        """Return when the first target segments end if the draft stays idle from now on."""
        return in_ticks(sum(map(self.segment_s, range(num_segments)), start=np.asarray(self.durations.target_half_s)))

    def idle(self, seconds: float | Floats) -> None:
        """Let the target compute alone."""
        self.now_s = self.now_s + seconds
        for index, left_s in enumerate(self._left_s):
            used = np.minimum(seconds, left_s)
            self._left_s[index] = left_s - used
            self._taken_s[index] = self._taken_s[index] + used
            seconds = seconds - used

    def run(self, kind: StepKind, num_steps: int | Floats) -> None:
        """Run all of these steps of the draft."""
        self.finish(kind, num_steps * self.durations.step_s[kind])
        self.runs.append(_Run(kind, num_steps, self.now_s))

    def finish(self, kind: StepKind, work_s: Floats) -> None:
        """Draft work while the target computes, and what is left of it alone."""
        self._compute(self.together(kind, work_s))

    def together(self, kind: StepKind, work_s: Floats, *, num_segments: int = 2) -> Floats:
        """Draft work for as long as the target's first segments last; return what is left of the work."""
        for index in range(min(1 + num_segments, len(self._left_s))):
            work_s, _ = self._at_once(index, kind, work_s)
        return work_s

    def until(self, kind: StepKind, work_s: Floats, seconds: Floats) -> Floats:
        """Draft work for `seconds` at most, beyond the target's first segment; return what is left of it."""
        work_s, seconds = self._at_once(len(self._left_s) - 1, kind, work_s, seconds)
        alone = np.minimum(seconds, work_s)
        self._compute(alone)
        return work_s - alone

    def _at_once(
        self, index: int, kind: StepKind, work_s: Floats, within_s: Floats = _FOREVER
    ) -> tuple[Floats, Floats]:
        """Run draft work beside a target segment until one ends, or the time is up; return what is left of both."""
        left_s = self._left_s[index]
        if not left_s.any() or not work_s.any():
            return work_s, within_s
        slow = self.durations.slowdowns[index - 1][kind] if index else _NO_SLOWDOWN
        draft_needs_s, target_needs_s = work_s * slow.draft, left_s * slow.target
        elapsed = np.minimum(np.minimum(draft_needs_s, target_needs_s), within_s)
        # Finished work is set to exactly 0: a remainder from rounding would count as a step that has begun.
        self._left_s[index] = np.where(elapsed == target_needs_s, 0.0, left_s - elapsed / slow.target)
        self._taken_s[index] = self._taken_s[index] + elapsed
        if index:
            self.hidden_s = self.hidden_s + elapsed
        self._compute(elapsed)
        work_s = np.where(elapsed == draft_needs_s, 0.0, work_s - elapsed / slow.draft)
        return work_s, within_s - elapsed

    def _compute(self, seconds: Floats) -> None:
        self.now_s = self.now_s + seconds
        self.busy_s = self.busy_s + seconds


def _between(count: Floats, most: float | Floats) -> Floats:
    """Return `count` limited to 0..`most`; `np.clip` takes longer."""
    return np.minimum(np.maximum(count, 0.0), most)
