"""What a simulation promises: the time per token with an interval, and where the time goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot
from typing import NamedTuple

import numpy as np

from sim.acceptance.acceptance_model import Walk
from sim.cost.cost_model import Floats, Ints
from sim.cost.durations import Durations

DEVIATIONS = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""


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


@dataclass(slots=True)
class RoundTimes:
    """What the rounds of a schedule take.

    Attributes:
        seconds: from one round's first operation to the next one's, [rounds]; a drafting that precedes the
            verification counts for its round.
        waits_s: where they went, by the names of `Bottlenecks`.
        target_busy_s, draft_busy_s: time in which either computes.
        hidden_draft_s: time in which both do.
        num_hits, num_asked: rounds whose outcome had a branch, and rounds that asked for one.
    """

    seconds: Floats
    waits_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(Bottlenecks._fields, 0.0))
    target_busy_s: float = 0.0
    draft_busy_s: float = 0.0
    hidden_draft_s: float = 0.0
    num_hits: int = 0
    num_asked: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One schedule on one machine over some prompts; sums run over all prompts.

    Attributes:
        tpot_s: decoding time per committed token.
        tpot_s_low, tpot_s_high: `tpot_s` * (1 -+ e), see `relative_error`.
        relative_error: e = sqrt(machine^2 + spread^2 + sampling^2), where *machine* is the profile's own
            relative error from held-back checks, *spread* that of its tables, each weighted by its share of the
            time (errors of one lane's parts are taken to go the same way), and *sampling* 1.96 standard errors
            of the ratio of time to tokens over prompts. One prompt shows nothing of it.
        decode_s: time from the first operation to the last commit.
        num_tokens, num_rounds: committed tokens, verifications.
        num_accepted_tokens: drafted tokens that were committed.
        mean_acceptance_length: committed tokens per verification.
        reuse_rate: hits over rounds that asked for a branch; NaN if none did.
        target_busy_s: time in which the target computes.
        hidden_draft_s, exposed_draft_s: time in which the draft computes, while the target does or not.
        bottlenecks: what the decoding time went to.
        source: where acceptance and times come from.
    """

    tpot_s: float
    tpot_s_low: float
    tpot_s_high: float
    relative_error: float
    decode_s: float
    num_tokens: int
    num_rounds: int
    num_accepted_tokens: int
    mean_acceptance_length: float
    reuse_rate: float
    target_busy_s: float
    hidden_draft_s: float
    exposed_draft_s: float
    bottlenecks: Bottlenecks
    source: str


def summarise(
    walk: Walk, times: RoundTimes, durations: Durations, *, machine_error: float, acceptance_source: str
) -> Prediction:
    """The prediction that timed rounds amount to."""
    decode_s = _by_prompt(walk, times.seconds)
    tokens = _by_prompt(walk, walk.num_committed)
    total_s, num_tokens, num_rounds = float(decode_s.sum()), int(tokens.sum()), len(walk.prompt)
    tpot_s = total_s / num_tokens
    waits = Bottlenecks(**times.waits_s)
    errors = (machine_error, _spread(waits, durations, total_s), _sampling_error(decode_s, tokens))
    relative_error = hypot(*errors)
    return Prediction(
        tpot_s=tpot_s,
        tpot_s_low=tpot_s * max(0.0, 1 - relative_error),
        tpot_s_high=tpot_s * (1 + relative_error),
        relative_error=relative_error,
        decode_s=total_s,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        num_accepted_tokens=int(np.minimum(walk.num_accepted, walk.num_committed).sum()),
        mean_acceptance_length=num_tokens / num_rounds,
        reuse_rate=times.num_hits / times.num_asked if times.num_asked else float("nan"),
        target_busy_s=times.target_busy_s,
        hidden_draft_s=times.hidden_draft_s,
        exposed_draft_s=times.draft_busy_s - times.hidden_draft_s,
        bottlenecks=waits,
        source="; ".join((acceptance_source, *durations.sources)),
    )


def _by_prompt(walk: Walk, values: Floats | Ints) -> Floats:
    return np.bincount(walk.prompt, weights=values, minlength=walk.num_prompts).astype(np.float64)


def _spread(waits: Bottlenecks, durations: Durations, total_s: float) -> float:
    """Relative error of the decoding time from the spread of the tables."""
    target_s = waits.target_prefix + waits.target_suffix + waits.target_verify
    draft_s = waits.draft + waits.fallback
    return (target_s * durations.target_relative_error + draft_s * durations.draft_relative_error) / total_s


def _sampling_error(decode_s: Floats, tokens: Floats) -> float:
    """`DEVIATIONS` relative standard errors of sum(decode_s) / sum(tokens) over prompts (ratio estimator)."""
    num_prompts = len(tokens)
    if num_prompts < 2:
        return 0.0
    ratio = decode_s.sum() / tokens.sum()
    residuals = decode_s - ratio * tokens
    standard_error = np.sqrt(num_prompts / (num_prompts - 1) * (residuals**2).sum()) / tokens.sum()
    return DEVIATIONS * float(standard_error / ratio)
