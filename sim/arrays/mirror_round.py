"""Times a mirror round up to the point where the draft notices the verdict, for all contexts at once.

Until then the timing does not depend on acceptance: the target computes its segments, the draft its branch steps, and
each slows the other down while both compute. So the round is solved once per context. Which branch is taken, and how
much of it is left, is looked up afterwards.

The draft's work is a sequence of runs of equal steps. Each run is placed beside what is left of the target's segments:
both advance, slowed down, until one of them ends, then the other continues alone. Times are seconds since the driver
issued the round's operations; arrays are over contexts.

Example: alone, prefix and suffix take 4 s and 2 s, the draft's first step (reading the window's last token) 1 s, each
of the two branch steps for the exit's roots 2 s, and the exit message 1 s. Dispatch takes no time; everything takes
twice as long while both lanes compute ::

    seconds    0           2           5           6           8           9           11
    target     | prefix    | prefix    | suffix    | suffix    |
                 1 s done    3 s alone   1 s alone   1 s done
    draft      | last row  | idle      | message   | roots     | roots     | (roots)   |
                 1 s done                            1 s done    1 s alone   2 s alone

The request for a window arrives at 8, within the first of the two branch steps, and is noticed at 9. Without it the
steps would end at 11, so floor((11 - 8) / 2) = 1 of them has not begun at 8.
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
    """The part of a mirror round that does not depend on the verdict, [contexts].

    Attributes:
        channel_s: time of the verdict to the draft's lane, including a wait for the exit message sent before.
        boundary_s: time from the verdict's arrival to the end of the step under way, when the draft acts on it.
        num_steps: branch steps done by then for each source, [sources, contexts]; 0 for `MISS`.
        is_read: whether the draft has read the window (with features: read it again with its features).
        slowed_s: time that contention with the draft adds to the target's segments, [segments, contexts].
        hidden_s, busy_s: draft time until then, while the target computes, and in total.
        last_busy_s: total draft time if the round is the sequence's last: no step begins after the commit.
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
    """Return the timeline of a mirror round at each context of `durations`."""
    lanes = _TwoLanes(durations)
    half, messages = durations.draft_half_s, durations.messages
    exit_s = float(crossing_s(messages.to_draft, np.array(messages.exit_bytes)))
    lanes.idle(half)
    arrival_s = _branch(lanes, schedule, durations.target_half_s + exit_s + half)
    commit_s = lanes.end_s(len(durations.segments_s)) + (durations.target_half_s + durations.round_overhead_s)
    asked_s = commit_s + half
    # Messages arrive in the order of sending: the verdict does not overtake the exit message.
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
    """Run the branch operation as if no verdict arrived; return when the exit message arrives, None without one."""
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
    """Run the steps of the draft's roots, and after the exit message also of the exit's; return when it arrives."""
    draft_steps: Floats = np.zeros_like(lanes.now_s)
    in_order: tuple[tuple[StepKind, int], ...] = (("draft_roots", 1), ("draft_later", num_steps - 1))
    for kind, most in in_order:
        step_s = lanes.durations.step_s[kind]
        work_s = most * step_s
        left_s = lanes.together(kind, work_s, num_segments=1)
        # contexts whose segment has not ended yet have no work left to do until the message arrives
        left_s = lanes.until(kind, left_s, np.maximum(lanes.end_s(1) + message_s - lanes.now_s, 0.0))
        begun = _between(np.ceil((work_s - left_s) / step_s), most)
        lanes.finish(kind, begun * step_s - (work_s - left_s))
        lanes.runs.append(_Run(kind, begun, lanes.now_s))
        draft_steps = draft_steps + begun
    arrival_s = lanes.end_s(1) + message_s
    lanes.idle(np.maximum(arrival_s - lanes.now_s, 0.0))
    not_started, is_done = draft_steps == 0, draft_steps == num_steps
    lanes.run("all_roots", not_started)
    lanes.run("all_later", num_steps - draft_steps - not_started)
    lanes.run("exit_roots", is_done)
    lanes.run("exit_later", draft_steps - is_done)
    return arrival_s


class _Run(NamedTuple):
    """Consecutive equal draft steps, and when the last one ends if nothing stops them."""

    kind: StepKind
    num_steps: int | Floats
    end_s: Floats

    def not_begun(self, request_s: Floats, step_s: Floats, arrival_s: Floats | None) -> Floats:
        """Return how many steps have not begun at a stop request.

        Steps of the exit's roots begin only if the exit message arrives (`arrival_s`) before the request.
        """
        count = _between(np.floor((self.end_s - request_s) / step_s), self.num_steps)
        if self.kind in EXIT_STEPS and arrival_s is not None:
            count = np.where(arrival_s >= request_s, self.num_steps, count)
        return count


class _TwoLanes:
    """Both lanes from the start of a round. The target's work is half a dispatch (index 0), then its segments.

    The draft's lane is simulated until `now_s`. Of each piece of the target's work `_left_s` is left at that time (in
    seconds alone), and the done part took `_taken_s`.
    """

    def __init__(self, durations: Durations) -> None:
        nothing = np.zeros(len(durations.segments_s[0]))
        self.durations = durations
        self.now_s = self.hidden_s = self.busy_s = nothing
        self.runs: list[_Run] = []
        self._left_s: list[Floats] = [nothing + durations.target_half_s, *durations.segments_s]
        self._taken_s = [nothing] * len(self._left_s)

    def segment_s(self, index: int) -> Floats:
        """Return the duration of a target segment if the draft stays idle from now on."""
        return self._taken_s[index + 1] + self._left_s[index + 1]

    def end_s(self, num_segments: int) -> Floats:
        """Return when the first `num_segments` target segments end if the draft stays idle from now on."""
        return in_ticks(sum(map(self.segment_s, range(num_segments)), start=np.asarray(self.durations.target_half_s)))

    def idle(self, seconds: float | Floats) -> None:
        """Let the draft be idle for `seconds`, while the target computes alone."""
        self.now_s = self.now_s + seconds
        for index, left_s in enumerate(self._left_s):
            used = np.minimum(seconds, left_s)
            self._left_s[index] = left_s - used
            self._taken_s[index] = self._taken_s[index] + used
            seconds = seconds - used

    def run(self, kind: StepKind, num_steps: int | Floats) -> None:
        """Run `num_steps` steps of the draft."""
        self.finish(kind, num_steps * self.durations.step_s[kind])
        self.runs.append(_Run(kind, num_steps, self.now_s))

    def finish(self, kind: StepKind, work_s: Floats) -> None:
        """Do draft work, first beside the target, the rest alone."""
        self._compute(self.together(kind, work_s))

    def together(self, kind: StepKind, work_s: Floats, *, num_segments: int = 2) -> Floats:
        """Do draft work until the target's first `num_segments` segments end; return the work that is left."""
        for index in range(min(1 + num_segments, len(self._left_s))):
            work_s, _ = self._at_once(index, kind, work_s)
        return work_s

    def until(self, kind: StepKind, work_s: Floats, seconds: Floats) -> Floats:
        """Do draft work for `seconds` at most, after the target's first segment; return the work that is left."""
        work_s, seconds = self._at_once(len(self._left_s) - 1, kind, work_s, seconds)
        alone = np.minimum(seconds, work_s)
        self._compute(alone)
        return work_s - alone

    def _at_once(
        self, index: int, kind: StepKind, work_s: Floats, within_s: Floats = _FOREVER
    ) -> tuple[Floats, Floats]:
        """Do draft work beside a piece of the target's work until one ends or the time is up.

        Returns:
            The draft work that is left, and the time that is left of `within_s`.
        """
        left_s = self._left_s[index]
        if not left_s.any() or not work_s.any():
            return work_s, within_s
        slow = self.durations.slowdowns[index - 1][kind] if index else _NO_SLOWDOWN
        draft_needs_s, target_needs_s = work_s * slow.draft, left_s * slow.target
        elapsed = np.minimum(np.minimum(draft_needs_s, target_needs_s), within_s)
        # Finished work is set to exactly 0: a rounding remainder would count as a step that has begun.
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
    """Return `count` limited to 0..`most`; faster than `np.clip`."""
    return np.minimum(np.maximum(count, 0.0), most)
