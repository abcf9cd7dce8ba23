"""The array world: a method's own generator, played once for all rounds of a schedule.

Every round begins with both lanes idle, so its duration depends on its position, on what its window holds and on what
the round before left unread, and on nothing else. The generator is driven through two rounds: the first one represents
all first rounds of prompts, the second all others. Waiting for a handle adds its time to every round it represents, and
to what was waited for. So it is exact for every method whose rounds ask the same of the lanes, the first of a text
excepted. Arrays are over rounds unless they say [contexts].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.messages import ExitSignal, Verdict, Window
from decoding.schedule import Schedule
from sim.acceptance.acceptance_model import FROM_DRAFT, MISS, NO_TOKEN, Walk
from sim.arrays.mirror_round import RoundAhead, look_ahead
from sim.cost.cost_model import Floats, Ints
from sim.cost.durations import Durations
from sim.prediction import RoundTimes


class Decided(NamedTuple):
    """What the models decide of a schedule's rounds.

    Attributes:
        walk: all rounds.
        branches: where a mirror schedule has the outcome of each.
        guesses: the steps of their drafts by the number of guesses, see `Guessing.counts`; None without streams.
    """

    walk: Walk
    branches: Ints
    guesses: Ints | None = None


Handle = Callable[[], object]
"""Work under way in every round: counts the wait for it, and gives the reply."""

_WINDOW = Window((NO_TOKEN,))
_REPLY = Verdict(0, NO_TOKEN, window=_WINDOW)
"""What the models say is known to `Decided` already; a method only passes it on."""


def time_rounds(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:
    """Time all rounds that the models decided on."""
    lanes = ArrayLanes(schedule, durations, decided)
    flow = schedule.traits.flow(lanes, schedule)
    handle: Any = next(flow)
    while not lanes.is_over:
        handle = flow.send(handle())
    flow.close()
    return lanes.times


class ArrayLanes:
    """See `decoding.lanes.Lanes`: target, draft and branches in one, for all rounds at once.

    Attributes:
        is_over: whether the first and all other rounds have been played.
        rounds: the rounds that the one under way represents.
        place: index of each one's context in the arrays of the durations.
        times: what was counted.
    """

    unfinished = True

    def __init__(self, schedule: Schedule, durations: Durations, decided: Decided) -> None:
        is_first = decided.walk.is_first
        self.target = self.draft = self
        self._schedule, self._durations, self._decided = schedule, durations, decided
        self._kinds = [np.flatnonzero(~is_first), np.flatnonzero(is_first)]
        self.rounds: Ints = np.zeros(0, dtype=np.int64)
        self.place: Ints = self.rounds
        self._begins = True
        self._ahead: RoundAhead | None = None
        self._verifications = np.searchsorted(durations.plan.widths, decided.walk.num_drafted)
        self._segments_s: Floats = np.array(durations.segments_s)
        self._streams_s: Floats = np.array(durations.streams_s)
        self.times = RoundTimes(np.zeros(len(is_first)))
        self.is_over = False

    def verify(self, window: Window) -> Handle:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        self._begin()
        overhead_s = 2 * self._durations.target_half_s + self._durations.round_overhead_s
        return lambda: self._wait_for_target(self._verifications[self.rounds], "target_verify", overhead_s)

    def prefix(self, window: Window, exit_layer: int) -> Handle:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        self._begin()
        return lambda: self._wait_for_target(0, "target_prefix", self._durations.target_half_s)

    def suffix(self) -> Handle:
        """See `decoding.lanes.TargetLane`."""
        overhead_s = self._durations.target_half_s + self._durations.round_overhead_s
        return lambda: self._wait_for_target(1, "target_suffix", overhead_s)

    def stream(self, window: Window) -> Handle:
        """See `decoding.lanes.TargetLane`."""
        return self.verify(window)

    def rollout(self, verdict: Verdict | None = None) -> Handle:
        """See `decoding.lanes.DraftLane`."""
        self._begin()
        unread = self._unread() if verdict is not None else np.zeros(len(self.rounds), dtype=np.int64)
        return lambda: self._wait_for_draft(self._rollout_s(unread))

    def branch(self, window: Window) -> ArrayLanes:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        if not self._ahead:
            self._ahead = look_ahead(self._schedule, self._durations)
        self.times.hidden_draft_s += _total(self._ahead.hidden_s[self.place])
        return self

    def join(self, signal: ExitSignal) -> None:
        """See `decoding.lanes.Branches`; `look_ahead` knows when."""

    def take(self, verdict: Verdict) -> Handle:  # noqa: ARG002
        """See `decoding.lanes.Branches`."""
        return self._wait_for_branch

    def commit(self, window: Window, verdict: Verdict) -> None:  # noqa: ARG002
        """End the round: what comes next begins another one."""
        self._begins = True

    def _begin(self) -> None:
        """Begin a round with its first operation."""
        if not self._begins:
            return
        self._begins, self.is_over = False, not self._kinds
        self.rounds = self._kinds.pop() if self._kinds else self.rounds[:0]
        self.place = self._decided.walk.context[self.rounds] - self._durations.first_context

    def _wait(self, overhead_s: float, **seconds: Floats) -> None:
        """Time of every round by what is waited for."""
        self.times.seconds[self.rounds] += sum(seconds.values(), start=overhead_s)
        for cause, waited_s in seconds.items():
            self.times.waits_s[cause] += _total(waited_s)
        self.times.waits_s["overhead"] += len(self.rounds) * overhead_s

    def _wait_for_target(self, segment: int | Ints, cause: str, overhead_s: float) -> Verdict:
        waits_s = {cause: self._segments_s[segment, self.place]}
        self.times.target_busy_s += _total(waits_s[cause])
        if self._durations.plan.streams:
            waits_s["draft"] = self._streams_s[segment, self.place]
            waits_s[cause] = waits_s[cause] - waits_s["draft"]
        if self._ahead:
            waits_s["contention"] = self._ahead.slowed_s[segment, self.place]
            self.times.target_busy_s += _total(waits_s["contention"])
        self._wait(overhead_s, **waits_s)
        return _REPLY

    def _wait_for_draft(self, seconds: Floats) -> Window:
        self._wait(2 * self._durations.draft_half_s, draft=seconds)
        self.times.draft_busy_s += _total(seconds)
        return _WINDOW

    def _wait_for_branch(self) -> Window:
        ahead, is_last, branches = self._ahead, self._decided.walk.is_last[self.rounds], self._decided.branches
        assert ahead is not None, "no branch to take"
        self.times.draft_busy_s += _total(ahead.last_busy_s[self.place[is_last]])
        self.rounds, self.place = self.rounds[~is_last], self.place[~is_last]
        here, is_miss = self.place, branches[self.rounds] == MISS
        missing_s = self._missing_s(ahead, is_miss)
        waited_s = ahead.boundary_s[here] + missing_s
        self._wait(
            2 * self._durations.draft_half_s,
            channel=ahead.channel_s[here],
            draft=np.where(is_miss, 0.0, waited_s),
            fallback=np.where(is_miss, waited_s, 0.0),
        )
        self.times.draft_busy_s += _total(ahead.busy_s[here]) + _total(missing_s)
        self.times.num_hits += int(np.count_nonzero(~is_miss))
        self.times.num_asked += len(self.rounds)
        return _WINDOW

    def _unread(self) -> Ints:
        """Tokens before the last committed one that a fresh rollout has to read."""
        accepted: Ints = self._decided.walk.num_accepted[self.rounds - 1]
        # a draft without features has read all it drafted but the last token
        unread = accepted if self._schedule.reads_features else accepted == self._schedule.num_speculative_tokens
        return np.minimum(unread, self._durations.plan.most_unread - 1)

    def _rollout_s(self, unread: Ints) -> Floats:
        durations, guesses = self._durations, self._decided.guesses
        if guesses is None:
            return durations.rollout_s[unread, self.place]
        return durations.catch_up_s[unread, self.place] + self._guessed_s(guesses[1, self.rounds], self.place)

    def _missing_s(self, ahead: RoundAhead, is_miss: NDArray[np.bool_]) -> Floats:
        """Draft time from noticing a verdict to having the next window."""
        walk, here, catch_up_s = self._decided.walk, self.place, self._durations.catch_up_s
        is_drafts = self._decided.branches[self.rounds] == FROM_DRAFT
        done = np.where(is_drafts, ahead.draft_steps[here], ahead.exit_steps[here])
        missing_s = self._completed_s(np.where(is_miss, 0, done))
        # Where no branch has begun the draft reads what was committed, hit or miss; with features a miss reads it anew.
        reads = ~ahead.is_read[here] | (self._schedule.exit_features & is_miss)
        if not reads.any():
            return missing_s
        accepted = walk.num_accepted[self.rounds]
        more_s = catch_up_s[accepted, here + accepted + 1] - catch_up_s[0, here + accepted + 1]
        return np.where(reads, self._completed_s(np.zeros_like(done)) + more_s, missing_s)

    def _completed_s(self, num_drafted: Ints) -> Floats:
        """Draft time to complete the next windows, of which so many tokens are there; the first step has one row."""
        durations, guesses, following = self._durations, self._decided.guesses, self.rounds + 1
        place = self._decided.walk.context[following] - durations.first_context
        one_row_s, num_tokens = durations.step_s["one_row"][place], self._schedule.num_speculative_tokens
        if guesses is None:
            return (num_tokens - num_drafted) * one_row_s
        steps = guesses[np.minimum(num_drafted + 1, num_tokens), following]
        return np.where(num_drafted < num_tokens, one_row_s + self._guessed_s(steps, place), 0.0)

    def _guessed_s(self, steps_RG: Ints, place: Ints) -> Floats:
        """Time of so many steps with 0, 1, ... guesses, [rounds]."""
        seconds: Floats = (steps_RG * self._durations.guessing_s[:, place].T).sum(axis=1)
        return seconds


def _total(seconds: Floats) -> float:
    return float(seconds.sum())
