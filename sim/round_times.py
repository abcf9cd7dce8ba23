"""The recurrence: how long every round takes, and what it waited for, for all rounds of a schedule at once.

Every round begins with both lanes idle, so its duration depends on its position and on what the round before left
unread, and on nothing else. Arrays are over rounds unless they say [contexts].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from decoding.schedule import Method, Schedule
from sim.acceptance import FROM_DRAFT, MISS, Ints, Walk
from sim.cost import Floats
from sim.durations import Durations
from sim.overlap import RoundAhead, look_ahead


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


def time_rounds(schedule: Schedule, durations: Durations, walk: Walk, branches: Ints) -> RoundTimes:
    """Time all rounds of `walk`; `branches` tells for each where a mirror schedule has its outcome."""
    return _RECURRENCES[schedule.method](schedule, durations, walk, branches)


def _autoregressive(schedule: Schedule, durations: Durations, walk: Walk, branches: Ints) -> RoundTimes:  # noqa: ARG001
    verify_s = durations.segments_s[0][walk.context - durations.first_context]
    overhead_s = 2 * durations.target_half_s + durations.round_overhead_s
    target_s = _total(verify_s)
    return RoundTimes(
        seconds=verify_s + overhead_s,
        bottlenecks=Bottlenecks(target_verify=target_s, overhead=len(verify_s) * overhead_s),
        target_busy_s=target_s,
    )


def _speculative(schedule: Schedule, durations: Durations, walk: Walk, branches: Ints) -> RoundTimes:  # noqa: ARG001
    more = _accepted_before(walk)
    if not schedule.exit_features:
        # it has read all it drafted but the last token
        more = np.where(more == schedule.num_speculative_tokens, 1, 0)
    return _in_turn(durations, walk, more)


def _tree(schedule: Schedule, durations: Durations, walk: Walk, branches: Ints) -> RoundTimes:  # noqa: ARG001
    return _in_turn(durations, walk, _accepted_before(walk))


def _accepted_before(walk: Walk) -> Ints:
    """Tokens that the round before accepted; 0 for the first."""
    return np.where(walk.is_first, 0, np.roll(walk.num_accepted, 1))


def _in_turn(durations: Durations, walk: Walk, more: Ints) -> RoundTimes:
    """Draft, then verify. `more` are tokens to read beside the last committed one."""
    place = walk.context - durations.first_context
    verify_s = durations.segments_s[0][place]
    draft_s = durations.rollout_s[more, place]
    overhead_s = 2 * (durations.target_half_s + durations.draft_half_s) + durations.round_overhead_s
    target_total_s, draft_total_s = _total(verify_s), _total(draft_s)
    return RoundTimes(
        seconds=draft_s + verify_s + overhead_s,
        bottlenecks=Bottlenecks(target_verify=target_total_s, draft=draft_total_s, overhead=len(verify_s) * overhead_s),
        target_busy_s=target_total_s,
        exposed_draft_s=draft_total_s,
    )


def _streaming(schedule: Schedule, durations: Durations, walk: Walk, branches: Ints) -> RoundTimes:  # noqa: ARG001
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


def _mirror(schedule: Schedule, durations: Durations, walk: Walk, branches: Ints) -> RoundTimes:
    ahead = look_ahead(schedule, durations)
    place = walk.context - durations.first_context
    first, asked = np.flatnonzero(walk.is_first), np.flatnonzero(~walk.is_last)
    here, branch = place[asked], branches[asked]
    missing_s = _missing(schedule, durations, ahead, here, walk.num_accepted[asked], branch)
    waited_s = (ahead.noticed_s - ahead.take_s)[here] + missing_s
    rollout_s = schedule.num_speculative_tokens * durations.step_s["one_row"][place[first]]

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


def _missing(
    schedule: Schedule, durations: Durations, ahead: RoundAhead, here: Ints, accepted: Ints, branch: Ints
) -> Floats:
    """Draft time between noticing a verdict and having the next window, [rounds].

    `here` is where the rounds' contexts stand among those of `durations`.
    """
    num_steps, one_row = schedule.num_speculative_tokens, durations.step_s["one_row"]
    after = here + accepted + 1
    done = np.where(branch == FROM_DRAFT, ahead.draft_steps[here], ahead.exit_steps[here])
    missing_s: Floats = (num_steps - np.where(branch == MISS, 0, done)) * one_row[after]
    # Where no branch has begun, hit or miss, the draft reads what was committed; with features a miss reads it anew.
    reads = ~ahead.is_read[here] | (schedule.exit_features & (branch == MISS))
    if not reads.any():
        return missing_s
    return np.where(reads, durations.rollout_s[accepted, after], missing_s)


def _total(seconds: Floats) -> float:
    return float(seconds.sum())


_RECURRENCES: dict[Method, Callable[[Schedule, Durations, Walk, Ints], RoundTimes]] = {
    "autoregressive": _autoregressive,
    "speculative": _speculative,
    "mirror": _mirror,
    "medusa": _tree,
    "hydra": _tree,
    "eagle2": _tree,
    "eagle3": _tree,
    "speculative_streaming": _streaming,
}
