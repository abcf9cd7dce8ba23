"""What the rounds of a schedule take, and what the sequence waited for in them."""

from __future__ import annotations

from typing import NamedTuple

from sim.cost.cost_model import Floats


class Bottlenecks(NamedTuple):
    """Seconds by what the sequence waited for; they add up to the decoding time.

    Attributes:
        target_prefix, target_suffix, target_verify: the target's layers, at the speed it has alone.
        draft: drafting that nothing hides: synchronous rollouts, the rest of a branch that was hit, and what streams
            add to the target's pass.
        channel: a request for the next window that waits for its round's exit message.
        overhead: dispatching operations, and the driver's own time.
        contention: what the draft, computing at the same time, adds to the target's time.
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
        hidden_draft_s, exposed_draft_s: time in which the draft computes, while the target does or not.
        num_hits, num_asked: rounds whose outcome had a branch, and rounds that asked for one.
    """

    seconds: Floats
    bottlenecks: Bottlenecks
    target_busy_s: float
    hidden_draft_s: float = 0.0
    exposed_draft_s: float = 0.0
    num_hits: int = 0
    num_asked: int = 0
