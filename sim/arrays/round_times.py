"""The recurrence: how long every round takes, and what it waited for, for all rounds of a schedule at once.

Every round begins with both lanes idle, so its duration depends on its position and on what the round before left
unread, and on nothing else. Arrays are over rounds unless they say [contexts].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from decoding.schedule import Method, Schedule
from sim.acceptance.acceptance_model import FROM_DRAFT, MISS, Ints, Walk
from sim.arrays.mirror_round import RoundAhead, look_ahead
from sim.cost.cost_model import Floats
from sim.cost.durations import Durations


class Bottlenecks(NamedTuple):
    """Seconds by what the sequence waited for; they add up to the decoding time.

    Attributes:
        target_prefix, target_suffix, target_verify: the target's layers, at the speed it has alone.
        draft: drafting that nothing hides: synchronous rollouts, the rest of a branch that was hit, and what streams
            add to the target's pass.
        channel: a request for the next window that waits behind its round's exit message.
        overhead: dispatching operations, and the driver's own time.
        contention: what the draft beside it adds to the target's time.
        fallback: after a miss, the step under way and the fresh rollout.
    """

    target_prefix: float = 0.0
    target_suffix: float = 0.0
    target_verify: float = 0.0
    draft: float = 0.0
    channel: float = 0.0
    overhead: float = 0.0
    contention: float = 0.0
    fallback: float = 0.0


class RoundTimes(NamedTuple):
    """What the rounds of a schedule take.

    Attributes:
        seconds: from one round's first operation to the next one's, [rounds]; a drafting that precedes the
            verification counts for its round.
        bottlenecks: where they went.
        target_busy_s: time in which the target computes.
        hidden_draft_s, exposed_draft_s: time in which the draft computes, beside the target or not.
        num_hits, num_asked: rounds whose outcome had a branch, and rounds that asked for one.
    """

    seconds: Floats
    bottlenecks: Bottlenecks
    target_busy_s: float
    hidden_draft_s: float = 0.0
    exposed_draft_s: float = 0.0
    num_hits: int = 0
    num_asked: int = 0


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


def time_rounds(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:
    """Time all rounds that the models decided on."""
    return _RECURRENCES[schedule.method](schedule, durations, decided)


def _autoregressive(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:  # noqa: ARG001
    verify_s = durations.segments_s[0][decided.walk.context - durations.first_context]
    overhead_s = 2 * durations.target_half_s + durations.round_overhead_s
    target_s = _total(verify_s)
    return RoundTimes(
        seconds=verify_s + overhead_s,
        bottlenecks=Bottlenecks(target_verify=target_s, overhead=len(verify_s) * overhead_s),
        target_busy_s=target_s,
    )


def _speculative(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:
    walk = decided.walk
    more = _accepted_before(walk)
    if not schedule.exit_features:
        # it has read all it drafted but the last token
        more = np.where(more == schedule.num_speculative_tokens, 1, 0)
    place = walk.context - durations.first_context
    draft_s = durations.rollout_s[more, place]
    if decided.guesses is not None:
        draft_s = durations.catch_up_s[more, place] + _guessed_s(durations, decided.guesses[1], place)
    return _in_turn(durations, place, draft_s)


def _tree(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:  # noqa: ARG001
    place = decided.walk.context - durations.first_context
    return _in_turn(durations, place, durations.rollout_s[_accepted_before(decided.walk), place])


def _accepted_before(walk: Walk) -> Ints:
    """Tokens that the round before accepted; 0 for the first."""
    return np.where(walk.is_first, 0, np.roll(walk.num_accepted, 1))


def _in_turn(durations: Durations, place: Ints, draft_s: Floats) -> RoundTimes:
    """Draft for `draft_s`, then verify; `place` is where the rounds' contexts stand among those of `durations`."""
    verify_s = durations.segments_s[0][place]
    overhead_s = 2 * (durations.target_half_s + durations.draft_half_s) + durations.round_overhead_s
    target_total_s, draft_total_s = _total(verify_s), _total(draft_s)
    return RoundTimes(
        seconds=draft_s + verify_s + overhead_s,
        bottlenecks=Bottlenecks(target_verify=target_total_s, draft=draft_total_s, overhead=len(verify_s) * overhead_s),
        target_busy_s=target_total_s,
        exposed_draft_s=draft_total_s,
    )


def _streaming(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:  # noqa: ARG001
    walk = decided.walk
    place = walk.context - durations.first_context
    (first_s, later_s), (first_streams_s, later_streams_s) = durations.segments_s, durations.streams_s
    pass_s = np.where(walk.is_first, first_s[place], later_s[place])
    streams_total_s = _total(np.where(walk.is_first, first_streams_s[place], later_streams_s[place]))
    overhead_s = 2 * durations.target_half_s + durations.round_overhead_s
    total_s = _total(pass_s)
    return RoundTimes(
        seconds=pass_s + overhead_s,
        bottlenecks=Bottlenecks(
            target_verify=total_s - streams_total_s, draft=streams_total_s, overhead=len(pass_s) * overhead_s
        ),
        target_busy_s=total_s,
    )


def _mirror(schedule: Schedule, durations: Durations, decided: Decided) -> RoundTimes:
    walk, branches = decided.walk, decided.branches
    ahead = look_ahead(schedule, durations)
    place = walk.context - durations.first_context
    first, asked = np.flatnonzero(walk.is_first), np.flatnonzero(~walk.is_last)
    here, branch = place[asked], branches[asked]
    missing_s = _missing(schedule, durations, ahead, decided, asked)
    waited_s = (ahead.noticed_s - ahead.take_s)[here] + missing_s
    nothing = np.zeros(len(first), dtype=np.int64)
    rollout_s = _completed_s(schedule, durations, decided, first, nothing)

    seconds = ahead.commit_s[place]
    seconds[asked] = (ahead.take_s + durations.draft_half_s)[here] + waited_s
    seconds[first] += rollout_s + 2 * durations.draft_half_s

    names = ("target_prefix", "target_suffix") if schedule.uses_exit else ("target_verify",)
    alone = {name: _total(part[place]) for name, part in zip(names, durations.segments_s, strict=True)}
    target_s = sum(_total(part[place]) for part in ahead.segments_s)
    hidden_s = _total(ahead.hidden_s[place])
    busy_s = _total(ahead.busy_s[here]) + _total(ahead.last_busy_s[place[walk.is_last]])
    busy_s += _total(missing_s) + _total(rollout_s)
    is_miss = branch == MISS
    fallback_s = _total(waited_s[is_miss])
    return RoundTimes(
        seconds=seconds,
        bottlenecks=Bottlenecks(
            **alone,
            draft=_total(rollout_s) + _total(waited_s) - fallback_s,
            channel=_total(ahead.channel_s[here]),
            overhead=len(place) * (2 * durations.target_half_s + durations.round_overhead_s)
            + (len(asked) + len(first)) * 2 * durations.draft_half_s,
            contention=target_s - sum(alone.values()),
            fallback=fallback_s,
        ),
        target_busy_s=target_s,
        hidden_draft_s=hidden_s,
        exposed_draft_s=busy_s - hidden_s,
        num_hits=len(asked) - int(np.count_nonzero(is_miss)),
        num_asked=len(asked),
    )


def _missing(schedule: Schedule, durations: Durations, ahead: RoundAhead, decided: Decided, asked: Ints) -> Floats:
    """Draft time between noticing a verdict and having the next window, for the rounds `asked` for one."""
    here = decided.walk.context[asked] - durations.first_context
    accepted, is_miss = decided.walk.num_accepted[asked], decided.branches[asked] == MISS
    done = np.where(decided.branches[asked] == FROM_DRAFT, ahead.draft_steps[here], ahead.exit_steps[here])
    missing_s = _completed_s(schedule, durations, decided, asked + 1, np.where(is_miss, 0, done))
    # Where no branch has begun, hit or miss, the draft reads what was committed; with features a miss reads it anew.
    reads = ~ahead.is_read[here] | (schedule.exit_features & is_miss)
    if not reads.any():
        return missing_s
    more_s = durations.catch_up_s[accepted, here + accepted + 1] - durations.catch_up_s[0, here + accepted + 1]
    from_nothing_s = _completed_s(schedule, durations, decided, asked + 1, np.zeros(len(asked), dtype=np.int64))
    return np.where(reads, from_nothing_s + more_s, missing_s)


def _completed_s(schedule: Schedule, durations: Durations, decided: Decided, rounds: Ints, num_drafted: Ints) -> Floats:
    """Draft time to complete the windows of `rounds`, of which so many tokens are there; the first step has one row."""
    place = decided.walk.context[rounds] - durations.first_context
    one_row_s, num_tokens = durations.step_s["one_row"][place], schedule.num_speculative_tokens
    if decided.guesses is None:
        return (num_tokens - num_drafted) * one_row_s
    steps = decided.guesses[np.minimum(num_drafted + 1, num_tokens), rounds]
    return np.where(num_drafted < num_tokens, one_row_s + _guessed_s(durations, steps, place), 0.0)


def _guessed_s(durations: Durations, steps_RG: Ints, place: Ints) -> Floats:
    """Time of so many steps with 0, 1, ... guesses, [rounds]."""
    seconds: Floats = (steps_RG * durations.guessing_s[:, place].T).sum(axis=1)
    return seconds


def _total(seconds: Floats) -> float:
    return float(seconds.sum())


_RECURRENCES: dict[Method, Callable[[Schedule, Durations, Decided], RoundTimes]] = {
    "autoregressive": _autoregressive,
    "speculative": _speculative,
    "mirror": _mirror,
    "medusa": _tree,
    "hydra": _tree,
    "eagle2": _tree,
    "eagle3": _tree,
    "speculative_streaming": _streaming,
}
