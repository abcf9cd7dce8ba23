"""The result of a simulation: time per token with an interval, bottlenecks, and times of whole requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats, Ints
from costs.durations import DurationFacts
from decoding.schedule import Schedule
from decoding.student_t import t_quantile
from hwprofiles.profile import Profile
from sim.acceptance.walk import Walk
from sim.error_shares import DRAWS, SAMPLES, Errors, ErrorShare, error_shares, interval, own_share, relative_error


class Bottlenecks(NamedTuple):
    """Seconds by what the sequence waited for; they sum to the decoding time.

    Attributes:
        target_prefix, target_suffix, target_verify: passes of the target, at the speed it has alone.
        draft: drafting that is not hidden behind the target: synchronous rollouts, the rest of a branch after a hit,
            and the time that streams add to the target's pass.
        channel: messages between lanes: windows, and verdicts with their wait for the round's exit message.
        overhead: dispatch of operations, and the driver's time.
        contention: time that the draft adds to the target's passes by computing at the same time.
        fallback: after a miss: the draft step under way, and the new rollout.
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
    """The times of a schedule's rounds.

    Attributes:
        seconds: from a round's first operation to the next round's, [rounds]; drafting before a verification belongs
            to the round of that verification.
        handing_over_s: the part of `seconds` after the commit, [rounds]; 0 if the next round begins at the commit.
        waits_s: total seconds by the names of `Bottlenecks`.
        target_busy_s, draft_busy_s: total time in which target and draft compute.
        hidden_draft_s: total time in which both compute at once.
        num_hits, num_asked: rounds whose outcome had a branch, and rounds that looked for one.
    """

    seconds: Floats
    handing_over_s: Floats
    waits_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(Bottlenecks._fields, 0.0))
    target_busy_s: float = 0.0
    draft_busy_s: float = 0.0
    hidden_draft_s: float = 0.0
    num_hits: int = 0
    num_asked: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The prediction of one schedule on one machine over some prompts; totals are over all prompts.

    Attributes:
        tpot_s: decoding time per committed token.
        errors: error shares of `tpot_s` by cause, see `sim.error_shares`. The choice of the recorded prompts is no
            cause: a run to compare with decodes the same ones. The chance in drawn or sampled texts is one.
        prefill_s: total time before decoding; None if it was not measured.
        ttft_s: mean time to the first token: prefill, and decoding up to the first commit; None without prefill.
        e2e_s: mean time of a request from its prompt to its last token; None without prefill.
        decode_s: total time from the first operation to the last commit.
        prompt_decode_s: decoding time of each text, in order.
        prompt_numbers: the prompt that each text answers, see `AcceptanceRecord.prompt_numbers`.
        num_tokens, num_rounds: committed tokens, verifications.
        num_accepted_tokens: drafted tokens that were committed.
        mean_acceptance_length: committed tokens per verification.
        reuse_rate: hits over rounds that looked for a branch; NaN if none did.
        target_busy_s: time in which the target computes.
        hidden_draft_s, exposed_draft_s: time in which the draft computes while the target does, and does not.
        bottlenecks: what the decoding time was spent on.
        source: where acceptance and times come from.
    """

    tpot_s: float
    errors: Errors = field(hash=False)
    prefill_s: float | None
    ttft_s: float | None
    e2e_s: float | None
    decode_s: float
    prompt_decode_s: tuple[float, ...]
    prompt_numbers: tuple[int, ...]
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

    def __repr__(self) -> str:
        """Show a summary: the times of all prompts would fill pages."""
        low, high = 1e3 * self.tpot_s_low, 1e3 * self.tpot_s_high
        return (
            f"<Prediction: {1e3 * self.tpot_s:.1f} ms per token ({low:.1f} to {high:.1f}), {self.num_tokens} tokens in "
            f"{self.num_rounds} rounds>"
        )

    @property
    def relative_error(self) -> float:
        """Relative half-width (90 %) of `tpot_s`."""
        return relative_error(self.errors)

    @property
    def tpot_s_low(self) -> float:
        """Lower end of the 90 % interval of `tpot_s`."""
        return interval(self.tpot_s, self.relative_error)[0]

    @property
    def tpot_s_high(self) -> float:
        """Upper end of the 90 % interval of `tpot_s`."""
        return interval(self.tpot_s, self.relative_error)[1]

    def e2e_at(self, num_tokens: float) -> float | None:
        """Return the mean time of a request for `num_tokens` new tokens: prefill, and `tpot_s` per token."""
        return None if self.prefill_s is None else self.prefill_s / len(self.prompt_decode_s) + num_tokens * self.tpot_s


def summarise(
    walk: Walk,
    times: RoundTimes,
    facts: DurationFacts,
    *,
    profile: Profile,
    schedule: Schedule,
    prefill_s: Sequence[float] | None,
    acceptance_source: str,
) -> Prediction:
    """Return the prediction from timed rounds; `prefill_s` is the prefill of each prompt."""
    decode_s, tokens = walk.sums(times.seconds), walk.tokens_by_prompt
    total_s, num_tokens, num_rounds = float(decode_s.sum()), int(tokens.sum()), len(walk.prompt)
    waits, first = Bottlenecks(**times.waits_s), walk.first.index
    first_s = times.seconds[first] - times.handing_over_s[first]
    errors = error_shares(
        profile,
        facts,
        # a target slowed by contention has its own error, and (below, by `both_s`) that of the slowdown
        target_s=waits.target_prefix + waits.target_suffix + waits.target_verify + waits.contention,
        draft_s=waits.draft + waits.fallback,
        both_s=times.hidden_draft_s,
        total_s=total_s,
    )
    return Prediction(
        tpot_s=total_s / num_tokens,
        errors=errors | own_share(profile, schedule) | _chance(walk, times.seconds, decode_s / tokens),
        prefill_s=None if prefill_s is None else float(np.sum(prefill_s)),
        ttft_s=None if prefill_s is None else float(np.mean(prefill_s + first_s)),
        e2e_s=None if prefill_s is None else float(np.mean(prefill_s + decode_s)),
        decode_s=total_s,
        prompt_decode_s=tuple(decode_s.tolist()),
        prompt_numbers=walk.prompt_numbers,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        num_accepted_tokens=walk.num_accepted_tokens,
        mean_acceptance_length=num_tokens / num_rounds,
        reuse_rate=times.num_hits / times.num_asked if times.num_asked else float("nan"),
        target_busy_s=times.target_busy_s,
        hidden_draft_s=times.hidden_draft_s,
        exposed_draft_s=times.draft_busy_s - times.hidden_draft_s,
        bottlenecks=waits,
        source="; ".join((acceptance_source, *facts.sources)),
    )


def _chance(walk: Walk, seconds: Floats, tpot_s: Floats) -> dict[str, ErrorShare]:
    """Return the error from the chance in drawn or sampled texts, estimated from the spread of their times.

    The chance in sampled texts is the spread between texts of one prompt. With fewer than two texts per prompt it is
    the spread between all texts, which is larger, and with a single text the spread between its rounds.
    """
    if walk.is_drawn and len(tpot_s) > 1:
        return {DRAWS: ErrorShare(1.0, _mean_error(tpot_s, np.zeros(len(tpot_s), dtype=np.int64)))}
    if not walk.is_sampled:
        return {}
    prompts = np.array(walk.prompt_numbers)
    if len(tpot_s) > 1:
        are_several = len(tpot_s) >= 2 * len(set(walk.prompt_numbers))
        return {SAMPLES: ErrorShare(1.0, _mean_error(tpot_s, prompts * are_several))}
    off_s, num_rounds = seconds - tpot_s[0] * walk.num_committed, len(seconds)
    if num_rounds < 2:
        return {}
    error = float(np.sqrt((off_s**2).sum() * num_rounds / (num_rounds - 1)) / seconds.sum())
    return {SAMPLES: ErrorShare(1.0, t_quantile(num_rounds - 1) * error)}


def _mean_error(values: Floats, groups: Ints) -> float:
    """Return the relative half-width (90 %) of the mean of `values`, from their spread within groups only."""
    means = np.bincount(groups, values) / np.bincount(groups)
    degrees = len(values) - len(means)
    variance = float(((values - means[groups]) ** 2).sum()) / degrees
    return t_quantile(degrees) * sqrt(variance / len(values)) / float(values.mean())
