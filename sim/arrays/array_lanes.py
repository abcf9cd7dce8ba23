"""Lanes of the array world: run a method's generator once for all rounds of a schedule.

Each round begins with both lanes idle, so its duration depends only on its context, its window, and the tokens that the
draft has not read yet. The generator is driven through two rounds: the first represents all prompts' first rounds, the
second all other rounds. Waiting for a handle adds its time to all rounds that are represented. Shape legend: R rounds
of a walk, G rounds of a group, C contexts, N rows of a table.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import Floats, Ints
from costs.durations import Durations
from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from sim.acceptance.branch_hits import MISS
from sim.acceptance.joined_record import NO_TOKEN
from sim.acceptance.shortened import WINDOWS
from sim.acceptance.walk import Rounds, Walk
from sim.arrays.mirror_round import OverlapTimeline, overlap_timeline
from sim.prediction import RoundTimes


class Decided(NamedTuple):
    """The models' decisions: the rounds of a schedule, and for a mirror schedule the source of each round's branch.

    `guesses`: steps of the windows by their number of guesses, see `Guessing.counts`; None without streams.
    """

    walk: Walk
    branches: Ints
    guesses: Ints | None = None


_Handle = Callable[[], object]
"""Work under way: calling it adds the waiting time to the rounds, and returns the reply."""
Wait = Callable[[Rounds], None]
"""Adds waiting time to the given rounds."""

_REPLY = Verdict(0, NO_TOKEN, window=WINDOWS[1])
"""A placeholder, like windows: methods only pass replies on, and `Decided` holds the models' decisions."""


def time_rounds(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:
    """Return the times of all rounds of `decided`."""
    lanes = ArrayLanes(schedule, durations, decided)
    flow = schedule.traits.flow(lanes, schedule)
    handle: Any = next(flow)
    while not lanes.is_over:
        handle = flow.send(handle())
    flow.close()
    return lanes.times


class ArrayLanes:
    """Implements `decoding.lanes.Lanes` (target, draft and branches in one object) for all rounds at once."""

    unfinished = True

    def __init__(self, schedule: Schedule, durations: Durations, decided: Decided) -> None:
        self.target = self.draft = self
        self._schedule, self._durations, self._decided = schedule, durations, decided
        self._num_rounds_begun, self._begins_round = 0, True
        self._window = WINDOWS[schedule.num_speculative_tokens]
        self._overlap: OverlapTimeline | None = None
        num_rounds = len(decided.walk.at)
        self.times = RoundTimes(np.zeros(num_rounds), np.zeros(num_rounds))

    @property
    def is_over(self) -> bool:
        """Whether both rounds have been run."""
        return self._num_rounds_begun > 2

    def verify(self, window: Window) -> _Handle:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._operation(self._verify, _REPLY)

    def prefix(self, window: Window, exit_layer: int) -> _Handle:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        half_s = self._durations.target_half_s
        return self._operation(lambda rounds: self._compute(rounds, 0, "target_prefix", half_s), _REPLY)

    def suffix(self) -> _Handle:
        """See `decoding.lanes.TargetLane`."""
        overhead_s = self._durations.target_half_s + self._durations.round_overhead_s
        return self._operation(lambda rounds: self._compute(rounds, 1, "target_suffix", overhead_s), _REPLY)

    def stream(self, window: Window) -> _Handle:
        """See `decoding.lanes.TargetLane`."""
        return self.verify(window)

    def rollout(self, verdict: Verdict | None = None) -> _Handle:
        """See `decoding.lanes.DraftLane`."""
        return self._operation(partial(self._draft, is_first=verdict is None), self._window)

    def branch(self, window: Window) -> "ArrayLanes":  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._overlap = self._overlap or overlap_timeline(self._schedule, self._durations)
        self._operation(self._count_hidden, None)()
        return self

    def join(self, signal: ExitSignal) -> None:
        """See `decoding.lanes.Branches`; `overlap_timeline` accounts for its time."""

    def take(self, verdict: Verdict) -> _Handle:  # noqa: ARG002
        """See `decoding.lanes.Branches`; the wait belongs to the round that was just committed."""
        return self._handle(self._take, self._window)

    def commit(self, window: Window, verdict: Verdict) -> None:  # noqa: ARG002
        """End the round: the next operation begins another one."""
        self._begins_round = True

    def _operation(self, wait: Wait, reply: object) -> _Handle:
        """Return the handle of an operation of the current round; the first operation begins the round."""
        self._num_rounds_begun += self._begins_round
        self._begins_round = False
        return self._handle(wait, reply)

    def _handle(self, wait: Wait, reply: object) -> _Handle:
        walk, is_first = self._decided.walk, self._num_rounds_begun == 1

        def handle() -> object:
            if not self.is_over:
                wait(walk.first if is_first else walk.later)
            return reply

        return handle

    def _add(self, rounds: Rounds, overhead_s: float, **seconds_G: Floats) -> None:
        """Add waiting time to rounds, by cause (a name of `Bottlenecks`)."""
        waits_s = self.times.waits_s
        self.times.seconds[rounds.index] += sum(seconds_G.values(), start=overhead_s)
        for cause, waited_s in seconds_G.items():
            waits_s[cause] += float(waited_s.sum())
        waits_s["overhead"] += len(rounds.place) * overhead_s

    def _verify(self, rounds: Rounds) -> None:
        overhead_s = 2 * self._durations.target_half_s + self._durations.round_overhead_s
        for segment, width in enumerate(self._durations.plan.widths):
            if (some := rounds.of_width(width)) is not None:
                self._compute(some, segment, "target_verify", overhead_s)

    def _compute(self, rounds: Rounds, segment: int, cause: str, overhead_s: float) -> None:
        """Add the time of a target segment."""
        durations, place = self._durations, rounds.place
        waits_s = {"draft": durations.drafting_s[segment][place], cause: durations.segments_s[segment][place]}
        self.times.target_busy_s += float(waits_s[cause].sum())
        waits_s[cause] = waits_s[cause] - waits_s["draft"]
        if self._overlap:
            waits_s["contention"] = self._overlap.slowed_s[segment][place]
            self.times.target_busy_s += float(waits_s["contention"].sum())
        self._add(rounds, overhead_s, **waits_s)

    def _draft(self, rounds: Rounds, *, is_first: bool) -> None:
        """Draft a whole window after reading the unread tokens; messages: the verdict before, the window after."""
        durations, guesses, place = self._durations, self._decided.guesses, rounds.place
        channel_s, unread = durations.messages.window_s[rounds.num_drafted], np.zeros_like(place)
        if not is_first:
            accepted = rounds.accepted_before
            channel_s = channel_s + durations.messages.verdict_s[accepted]
            unread = np.array(durations.plan.unread)[accepted]
        if guesses is None:
            seconds = _entries(durations.rollout_s, unread, place)
        else:
            seconds = _entries(durations.catch_up_s, unread, place) + self._guessed_s(guesses[1, rounds.index], place)
        self._add(rounds, 2 * durations.draft_half_s, channel=channel_s, draft=seconds)
        self.times.draft_busy_s += float(seconds.sum())

    def _count_hidden(self, rounds: Rounds) -> None:
        assert self._overlap is not None, "no branches to hide"
        self.times.hidden_draft_s += float(self._overlap.hidden_s[rounds.place].sum())

    def _take(self, rounds: Rounds) -> None:
        overlap, times, going_on = self._overlap, self.times, rounds.going_on
        assert overlap is not None, "no branch to take"
        is_miss = self._decided.branches[going_on.index] == MISS
        missing_s = self._missing_s(going_on, overlap, is_miss)
        waited_s = overlap.boundary_s[going_on.place] + missing_s
        overhead_s, missed_s = 2 * self._durations.draft_half_s, float(waited_s @ is_miss)
        channel_s = overlap.channel_s[going_on.place] + self._durations.messages.window_s[-1]
        times.handing_over_s[going_on.index] = channel_s + overhead_s + waited_s
        times.seconds[going_on.index] += times.handing_over_s[going_on.index]
        times.waits_s["overhead"] += len(waited_s) * overhead_s
        times.waits_s["channel"] += float(channel_s.sum())
        times.waits_s["draft"] += float(waited_s.sum()) - missed_s
        times.waits_s["fallback"] += missed_s
        branching_s = overlap.last_busy_s[rounds.ending.place].sum() + overlap.busy_s[going_on.place].sum()
        times.draft_busy_s += float(branching_s)
        times.draft_busy_s += float(missing_s.sum())
        times.num_hits += len(is_miss) - int(np.count_nonzero(is_miss))
        times.num_asked += len(is_miss)

    def _missing_s(self, rounds: Rounds, overlap: OverlapTimeline, is_miss: NDArray[np.bool_]) -> Floats:
        """Return the draft time from noticing a verdict to having the next window."""
        done = _entries(overlap.num_steps, self._decided.branches[rounds.index], rounds.place)
        missing_s = self._completed_s(rounds, done)
        # If no branch has begun, the draft reads the committed tokens, hit or miss; with features a miss reads them
        # again.
        if overlap.is_read.all() and not self._schedule.exit_features:
            return missing_s
        reads = ~overlap.is_read[rounds.place] | (self._schedule.exit_features & is_miss)
        catch_up_s, accepted, place = self._durations.catch_up_s, rounds.num_accepted, rounds.place_after
        more_s = _entries(catch_up_s, accepted, place) - catch_up_s[0][place]
        anew_s = self._completed_s(rounds, np.zeros_like(done))
        return np.where(reads, anew_s + more_s, missing_s)

    def _completed_s(self, rounds: Rounds, num_done: Ints) -> Floats:
        """Return the time to complete the next windows after `num_done` steps; the first of these steps has one row."""
        durations, guesses, place = self._durations, self._decided.guesses, rounds.place_after
        one_row_s, starting_s = durations.step_s["one_row"][place], durations.catch_up_s[0][place]
        if guesses is None:
            num_left = self._schedule.num_speculative_tokens - num_done
            return np.where(num_left > 0, starting_s + (num_left - 1) * one_row_s, 0.0)
        steps_GN = guesses[num_done, rounds.index + 1]
        steps_s = self._guessed_s(steps_GN, place) + np.where(num_done > 0, 0.0, one_row_s)
        return steps_s + np.where(steps_s > 0, starting_s - one_row_s, 0.0)

    def _guessed_s(self, steps_GN: Ints, place: Ints) -> Floats:
        """Return the total time of steps, [G]; `steps_GN` has the numbers of steps with 0, 1, ... guesses."""
        seconds: Floats = (steps_GN * self._durations.guessing_s[:, place].T).sum(axis=1)
        return seconds


def _entries(table_NC: NDArray[Any], row_G: Ints, place_G: Ints) -> NDArray[Any]:
    """Return `table_NC[row_G, place_G]`, but much faster."""
    entries: NDArray[Any] = table_NC.ravel().take(row_G * table_NC.shape[1] + place_G)
    return entries
