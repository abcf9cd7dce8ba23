"""How many times as fast one thing is as another that met the same prompts, with an interval that counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, inf, log, sqrt
from typing import Literal

import numpy as np

from decoding.student_t import t_quantile

Outcome = Literal["faster", "slower", "cannot tell"]
"""What is known of one schedule next to another."""

MOST_PAIRS = 1000
"""Nobody runs more prompts than that to learn which of two schedules is faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The other's time over one's, on the same prompts: above 1 `one` is faster.

    Attributes:
        value: the ratio.
        num_pairs: prompts that both met.
        prompts_error: half-width (90 %) of its logarithm from the chance of the prompts: whether it would also be so on
            others of their kind. Infinite where nothing is known of that.
        machine_error: likewise from what the machine's numbers may be off by, where times are predicted: what no
            further prompt makes smaller.
    """

    value: float
    num_pairs: int
    prompts_error: float
    machine_error: float = 0.0

    @property
    def low(self) -> float:
        """Where the interval (90 %) begins; 0 where nothing is known of the prompts' chance."""
        return self.value / self._factor

    @property
    def high(self) -> float:
        """Where it ends; infinity where nothing is known of the prompts' chance."""
        return self.value * self._factor

    @property
    def _factor(self) -> float:
        return exp(hypot(self.machine_error, self.prompts_error))

    @property
    def outcome(self) -> Outcome:
        """Whether the interval leaves no doubt that `one` is faster, or slower."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "cannot tell"


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """Total time of `other` over that of `one`, seconds of the same prompts in the same order.

    The interval is Student's, around the logarithm of the ratio: every prompt's own log ratio deviates equally, and
    counts by its share of the time. (Jackknife and linearised ratio estimators know only the deviations of the long
    prompts; with few prompts their intervals are too narrow.) One prompt shows no deviation: its interval has no end.

    Raises:
        ValueError: there is no pair, not every time has its partner, or one is not positive.
    """
    ours, theirs = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(ours) != len(theirs) or not len(ours):
        msg = f"times are compared in pairs; these are {len(ours)} and {len(theirs)}"
        raise ValueError(msg)
    if not (np.all(ours > 0) and np.all(theirs > 0)):
        msg = f"times must be positive, not {min(ours.min(), theirs.min())}"
        raise ValueError(msg)
    num_pairs = len(ours)
    value = float(theirs.sum() / ours.sum())
    if num_pairs == 1:
        return Ratio(value=value, num_pairs=1, prompts_error=inf)
    weights = (ours + theirs) / (ours + theirs).sum()
    error = float(np.log(theirs / ours).std(ddof=1) * np.sqrt((weights**2).sum()))
    return Ratio(value=value, num_pairs=num_pairs, prompts_error=t_quantile(num_pairs - 1) * error)


def pairs_needed(ratio: Ratio) -> int | None:
    """Return how many prompts like these would tell which is faster; None where `MOST_PAIRS` would not.

    One prompt shows no spread, and says nothing of others.
    """
    lead, shared = abs(log(ratio.value)), ratio.machine_error
    if ratio.num_pairs < 2 or lead <= shared:
        return None
    error = ratio.prompts_error / t_quantile(ratio.num_pairs - 1) * sqrt(ratio.num_pairs)
    for count in range(2, MOST_PAIRS + 1):
        if shared**2 + (t_quantile(count - 1) * error) ** 2 / count < lead**2:
            return count
    return None
