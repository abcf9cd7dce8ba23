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
        guesses: the steps of their windows by the number of guesses, see `Guessing.counts`; None without streams.
    """

    walk: Walk
    branches: Ints
    guesses: Ints | None = None


Handle = Callable[[], object]
"""Work under way: notes that it was waited for, and gives the reply."""
Wait = Callable[[Ints], None]
"""Adds what the given rounds wait for."""

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
    return lanes.times()


class ArrayLanes:
    """See `decoding.lanes.Lanes`: target, draft and branches in one, for all rounds at once.

    A handle that is waited for notes what it waits for. What first rounds and all others wait for alike is worked out
    for both together, at the end.
    """

    unfinished = True

    def __init__(self, schedule: Schedule, durations: Durations, decided: Decided) -> None:
        self.target = self.draft = self
        self._schedule, self._durations, self._decided = schedule, durations, decided
        self._asked: list[tuple[Wait, int]] = []
        self._num_begun, self._begins = 0, True
        self._ahead: RoundAhead | None = None
        self._place: Ints = decided.walk.context - durations.first_context
        self._times = RoundTimes(np.zeros(len(self._place)), np.zeros(len(self._place)))

    @property
    def is_over(self) -> bool:
        """Whether a first round and another one have been played."""
        return self._num_begun > 2

    def verify(self, window: Window) -> Handle:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._operation(self._verify, _REPLY)

    def prefix(self, window: Window, exit_layer: int) -> Handle:  # noqa: ARG002
        """See `decoding.lanes.TargetLane`."""
        return self._operation(self._prefix, _REPLY)

    def suffix(self) -> Handle:
        """See `decoding.lanes.TargetLane`."""
        return self._operation(self._suffix, _REPLY)

    def stream(self, window: Window) -> Handle:
        """See `decoding.lanes.TargetLane`."""
        return self.verify(window)

    def rollout(self, verdict: Verdict | None = None) -> Handle:
        """See `decoding.lanes.DraftLane`."""
        return self._operation(self._first_rollout if verdict is None else self._rollout, _WINDOW)

    def branch(self, window: Window) -> ArrayLanes:  # noqa: ARG002
        """See `decoding.lanes.DraftLane`."""
        self._ahead = self._ahead or look_ahead(self._schedule, self._durations)
        self._operation(self._hide_branches, None)()
        return self

    def join(self, signal: ExitSignal) -> None:
        """See `decoding.lanes.Branches`; `look_ahead` knows when."""

    def take(self, verdict: Verdict) -> Handle:  # noqa: ARG002
        """See `decoding.lanes.Branches`: the round before, committed already, waits for its branch."""
        return self._noting(self._take, _WINDOW)

    def commit(self, window: Window, verdict: Verdict) -> None:  # noqa: ARG002
        """End the round: the next operation begins another one."""
        self._begins = True

    def times(self) -> RoundTimes:
        """What all rounds waited for."""
        is_first = self._decided.walk.is_first
        of_kind = {1: np.flatnonzero(is_first), 2: np.flatnonzero(~is_first), 3: np.arange(len(is_first))}
        asked = self._asked
        while asked:  # once, but for methods that wait for the same twice in a round
            together: dict[Wait, int] = {}
            again = []
            for wait, kind in asked:
                if together.get(wait, 0) & kind:
                    again.append((wait, kind))
                else:
                    together[wait] = together.get(wait, 0) | kind
            for wait, kinds in together.items():
                wait(of_kind[kinds])
            asked = again
        return self._times

    def _operation(self, wait: Wait, reply: object) -> Handle:
        """An operation of the round under way, which it begins if it is the first."""
        self._num_begun += self._begins
        self._begins = False
        return self._noting(wait, reply)

    def _noting(self, wait: Wait, reply: object) -> Handle:
        kind = self._num_begun

        def handle() -> object:
            if not self.is_over:
                self._asked.append((wait, kind))
            return reply

        return handle

    def _add(self, rounds: Ints, overhead_s: float, **seconds: Floats) -> None:
        """Time of every round by what is waited for."""
        self._times.seconds[rounds] += sum(seconds.values(), start=overhead_s)
        for cause, waited_s in seconds.items():
            self._times.waits_s[cause] += _total(waited_s)
        self._times.waits_s["overhead"] += len(rounds) * overhead_s

    def _verify(self, rounds: Ints) -> None:
        overhead_s = 2 * self._durations.target_half_s + self._durations.round_overhead_s
        widths = self._durations.plan.widths
        if len(widths) == 1:
            self._compute(rounds, 0, "target_verify", overhead_s)
            return
        segments = np.searchsorted(widths, self._decided.walk.num_drafted[rounds])
        for segment in np.unique(segments).tolist():
            self._compute(rounds[segments == segment], segment, "target_verify", overhead_s)

    def _prefix(self, rounds: Ints) -> None:
        self._compute(rounds, 0, "target_prefix", self._durations.target_half_s)

    def _suffix(self, rounds: Ints) -> None:
        overhead_s = self._durations.target_half_s + self._durations.round_overhead_s
        self._compute(rounds, 1, "target_suffix", overhead_s)

    def _compute(self, rounds: Ints, segment: int, cause: str, overhead_s: float) -> None:
        """A segment of the target."""
        place, durations = self._place[rounds], self._durations
        waits_s = {cause: durations.segments_s[segment][place]}
        self._times.target_busy_s += _total(waits_s[cause])
        if durations.plan.streams:
            waits_s["draft"] = durations.streams_s[segment][place]
            waits_s[cause] = waits_s[cause] - waits_s["draft"]
        if self._ahead:
            waits_s["contention"] = self._ahead.slowed_s[segment, place]
            self._times.target_busy_s += _total(waits_s["contention"])
        self._add(rounds, overhead_s, **waits_s)

    def _first_rollout(self, rounds: Ints) -> None:
        self._draft(rounds, np.zeros(len(rounds), dtype=np.int64), self._window_s(rounds))

    def _rollout(self, rounds: Ints) -> None:
        accepted, messages = self._decided.walk.num_accepted[rounds - 1], self._durations.messages
        channel_s = self._window_s(rounds)
        if messages.to_draft:
            channel_s = channel_s + messages.verdict_s[accepted]
        self._draft(rounds, np.array(self._durations.plan.unread)[accepted], channel_s)

    def _window_s(self, rounds: Ints) -> Floats:
        """How long the windows of rounds are on their way to the target's lane."""
        messages = self._durations.messages
        return messages.window_s[self._decided.walk.num_drafted[rounds]] if messages.to_target else np.zeros(1)

    def _draft(self, rounds: Ints, unread: Ints, channel_s: Floats) -> None:
        """A whole window, after reading so many tokens before the last committed one; messages take so long."""
        durations, guesses, place = self._durations, self._decided.guesses, self._place[rounds]
        if guesses is None:
            seconds = durations.rollout_s[unread, place]
        else:
            seconds = durations.catch_up_s[unread, place] + self._guessed_s(guesses[1, rounds], place)
        self._add(rounds, 2 * durations.draft_half_s, channel=channel_s, draft=seconds)
        self._times.draft_busy_s += _total(seconds)

    def _hide_branches(self, rounds: Ints) -> None:
        assert self._ahead is not None, "no branches to hide"
        self._times.hidden_draft_s += _total(self._ahead.hidden_s[self._place[rounds]])

    def _take(self, rounds: Ints) -> None:
        ahead, is_last, times = self._ahead, self._decided.walk.is_last[rounds], self._times
        assert ahead is not None, "no branch to take"
        times.draft_busy_s += _total(ahead.last_busy_s[self._place[rounds[is_last]]])
        rounds = rounds[~is_last]
        here, is_miss = self._place[rounds], self._decided.branches[rounds] == MISS
        missing_s = self._missing_s(rounds, ahead, is_miss)
        waited_s = ahead.boundary_s[here] + missing_s
        overhead_s = 2 * self._durations.draft_half_s
        channel_s = ahead.channel_s[here] + self._window_s(rounds + 1)
        times.handing_over_s[rounds] = overhead_s + channel_s + waited_s
        self._add(
            rounds,
            overhead_s,
            channel=channel_s,
            draft=np.where(is_miss, 0.0, waited_s),
            fallback=np.where(is_miss, waited_s, 0.0),
        )
        times.draft_busy_s += _total(ahead.busy_s[here]) + _total(missing_s)
        times.num_hits += int(np.count_nonzero(~is_miss))
        times.num_asked += len(rounds)

    def _missing_s(self, rounds: Ints, ahead: RoundAhead, is_miss: NDArray[np.bool_]) -> Floats:
        """Draft time from noticing a verdict to having the next window."""
        here, catch_up_s = self._place[rounds], self._durations.catch_up_s
        is_drafts = self._decided.branches[rounds] == FROM_DRAFT
        done = np.where(is_drafts, ahead.draft_steps[here], ahead.exit_steps[here])
        missing_s = self._completed_s(rounds + 1, np.where(is_miss, 0, done))
        # Where no branch has begun the draft reads what was committed, hit or miss; with features a miss reads it anew.
        reads = ~ahead.is_read[here] | (self._schedule.exit_features & is_miss)
        if not reads.any():
            return missing_s
        accepted = self._decided.walk.num_accepted[rounds]
        more_s = catch_up_s[accepted, here + accepted + 1] - catch_up_s[0, here + accepted + 1]
        return np.where(reads, self._completed_s(rounds + 1, np.zeros_like(done)) + more_s, missing_s)

    def _completed_s(self, rounds: Ints, num_done: Ints) -> Floats:
        """Draft time to complete windows of which so many steps are done; the first one of all has one row."""
        durations, guesses, place = self._durations, self._decided.guesses, self._place[rounds]
        one_row_s, num_tokens = durations.step_s["one_row"][place], self._schedule.num_speculative_tokens
        if guesses is None:
            return (num_tokens - num_done) * one_row_s
        return np.where(num_done > 0, 0.0, one_row_s) + self._guessed_s(guesses[num_done, rounds], place)

    def _guessed_s(self, steps_RG: Ints, place: Ints) -> Floats:
        """Time of so many steps with 0, 1, ... guesses, [rounds]."""
        seconds: Floats = (steps_RG * self._durations.guessing_s[:, place].T).sum(axis=1)
        return seconds


def _total(seconds: Floats) -> float:
    return float(seconds.sum())
