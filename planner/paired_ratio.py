"""How many times as fast one thing is as another that met the same prompts, with an interval that counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.student_t import t_quantile

Seconds = NDArray[np.float64]
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
        machine_error: likewise from what is not known of the machine: what times that are predicted may be off by, or
            what runs leave open of the cost of rounds that are known.
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
    def on_these(self) -> Ratio:
        """The ratio on these very prompts, whose chance does not matter then."""
        return replace(self, prompts_error=0.0)

    @property
    def _factor(self) -> float:
        return exp(hypot(self.machine_error, self.prompts_error))

    @property
    def outcome(self) -> Outcome:
        """Whether the interval leaves no doubt that `one` is faster, or slower."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "cannot tell"


class Pairs(NamedTuple):
    """Seconds of two schedules, each on the same prompts in the same order."""

    one: Sequence[float]
    other: Sequence[float]

    def checked(self) -> tuple[Seconds, Seconds]:
        """Return both as arrays.

        Raises:
            ValueError: there is no pair, not every time has its partner, or one is not positive.
        """
        ours, theirs = np.asarray(self.one, dtype=np.float64), np.asarray(self.other, dtype=np.float64)
        if len(ours) != len(theirs) or not len(ours):
            msg = f"times are compared in pairs; these are {len(ours)} and {len(theirs)}"
            raise ValueError(msg)
        if not (np.all(ours > 0) and np.all(theirs > 0)):
            msg = f"times must be positive, not {min(ours.min(), theirs.min())}"
            raise ValueError(msg)
        return ours, theirs


def paired_ratio(one: Sequence[float], other: Sequence[float], *, expected: Pairs | None = None) -> Ratio:
    """Total time of `other` over that of `one`, seconds of the same prompts in the same order.

    The interval is Student's, around the logarithm of the ratio: every prompt's own log ratio deviates equally, and
    counts by its share of the time. (Jackknife and linearised ratio estimators know only the deviations of the long
    prompts; with few prompts their intervals are too narrow.) One prompt shows no deviation: its interval has no end.

    Args:
        one: of the schedule that the ratio is of.
        other: of the one that it is compared with.
        expected: times by which the prompts are known to differ: only what deviates from them is chance.

    Raises:
        ValueError: there is no pair, not every time has its partner, or one is not positive.
    """
    ours, theirs = Pairs(one, other).checked()
    num_pairs = len(ours)
    value = float(theirs.sum() / ours.sum())
    if num_pairs == 1:
        return Ratio(value=value, num_pairs=1, prompts_error=inf)
    deviations = np.log(theirs / ours)
    if expected is not None:
        expected_ours, expected_theirs = expected.checked()
        deviations -= np.log(expected_theirs / expected_ours)
    weights = (ours + theirs) / (ours + theirs).sum()
    error = float(deviations.std(ddof=1) * np.sqrt((weights**2).sum()))
    return Ratio(value=value, num_pairs=num_pairs, prompts_error=t_quantile(num_pairs - 1) * error)


def ratio_by_rounds(measured: Pairs, simulated: Pairs, recorded: Pairs) -> Ratio:
    """Return the ratio over all recorded prompts, of which some were run.

    The rounds of every recorded prompt are known, so runs have to tell only what these rounds really cost. The
    simulated ratio of all prompts is corrected by the measured over the simulated one of those that were run (the ratio
    estimator of two-phase sampling). It holds whatever the simulation is worth, if the prompts that were run are a
    random part: a poor simulation makes the interval wide.

    Args:
        measured: times of the prompts that were run.
        simulated: of the same prompts, as far as they were run.
        recorded: simulated times of all recorded prompts, in full.

    Raises:
        ValueError: as in `paired_ratio`.
    """
    runs = paired_ratio(*measured, expected=simulated)
    cost = runs.value / _total_ratio(simulated)
    return Ratio(
        value=cost * _total_ratio(recorded),
        num_pairs=len(recorded.one),
        prompts_error=prompts_error(recorded),
        machine_error=runs.prompts_error,
    )


def prompts_error(times_s: Pairs) -> float:
    """Return the half-width (90 %) of log(sum(other) / sum(one)) over prompts, by a delete-one jackknife.

    A single prompt shows nothing of its chance, which counts as none.
    """
    count = len(times_s.one)
    if count < 2:
        return 0.0
    without_one, without_other = (np.log(np.sum(side) - np.asarray(side)) for side in times_s)
    logs = without_other - without_one
    standard_error = np.sqrt((count - 1) / count * ((logs - logs.mean()) ** 2).sum())
    return t_quantile(count - 1) * float(standard_error)


def _total_ratio(times_s: Pairs) -> float:
    return sum(times_s.other) / sum(times_s.one)


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
