"""The ratio of two times over the same prompts, both measured or both predicted of one machine, with its interval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, inf, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costs.cost_model import LaneCost
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.student_t import t_quantile
from hwprofiles.profile import Profile
from sim.error_shares import ratio_error
from sim.evaluator import Evaluator
from sim.prediction import Prediction

Outcome = Literal["faster", "slower", "cannot tell"]
"""Whether one schedule is faster than another, as far as is known."""

MOST_PAIRS = 1000
"""More prompts than this are not suggested for telling which of two schedules is faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The other's time over one's, on the same prompts: above 1 `one` is faster.

    Attributes:
        num_pairs: prompts that both met.
        prompts_error: half-width (90 %) of the logarithm from sampling prompts; infinite where it is not known.
        machine_error: likewise from the errors of predicted times, or of the cost of rounds in runs.
    """

    value: float
    num_pairs: int
    prompts_error: float
    machine_error: float = 0.0

    @property
    def low(self) -> float:
        """Lower end of the interval (90 %); 0 where `prompts_error` is not known."""
        return self.value / self._factor

    @property
    def high(self) -> float:
        """Upper end; infinity where `prompts_error` is not known."""
        return self.value * self._factor

    @property
    def on_these(self) -> "Ratio":
        """The ratio on these very prompts, without `prompts_error`."""
        return replace(self, prompts_error=0.0)

    @property
    def _factor(self) -> float:
        return exp(hypot(self.machine_error, self.prompts_error))

    @property
    def outcome(self) -> Outcome:
        """Whether `one` is faster or slower by the whole interval."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "cannot tell"


class Pairs(NamedTuple):
    """Seconds of two schedules on the same prompts in the same order, and the kind of each prompt, where known."""

    one: Sequence[float]
    other: Sequence[float]
    kinds: Sequence[str] = ()


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """Return the total time of `other` over that of `one`, seconds above zero of the same prompts.

    The interval is Student's, of the logarithm: each prompt's own log ratio deviates equally, and counts by its share
    of the time. (With few prompts, jackknife and linearised ratio estimators have too narrow intervals: they know only
    the deviations of the long prompts.) With one prompt the interval has no end.
    """
    ours, theirs = np.array(one, dtype=np.float64), np.array(other, dtype=np.float64)
    num_pairs = len(ours)
    value = float(theirs.sum() / ours.sum())
    if num_pairs == 1:
        return Ratio(value=value, num_pairs=1, prompts_error=inf)
    weights = (ours + theirs) / (ours + theirs).sum()
    error = float(np.log(theirs / ours).std(ddof=1) * np.sqrt((weights**2).sum()))
    return Ratio(value=value, num_pairs=num_pairs, prompts_error=t_quantile(num_pairs - 1) * error)


class CommonFit:
    """How far off the simulated times of schedules are, fitted to all their runs together by least squares.

    log(measured / simulated) of a run is a schedule's term plus a prompt's term plus `noise` (a standard deviation).
    So schedules that shared few prompts are compared by way of others. Runs count by their simulated seconds: the terms
    are to correct a ratio of total times. Their noise is taken to be equal; that of short runs is rather larger, so
    that the error is not too small.
    """

    def __init__(self, times_s: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
        """Fit measured and simulated seconds, by schedule and prompt."""
        prompts = list(dict.fromkeys(prompt for runs in times_s.values() for prompt in runs))
        self._places = {schedule: place for place, schedule in enumerate(times_s)}
        places = [(place, prompts.index(prompt)) for place, own in enumerate(times_s.values()) for prompt in own]
        measured_s, simulated_s = np.array([pair for own in times_s.values() for pair in own.values()]).T
        values, weights = np.log(measured_s / simulated_s), simulated_s / simulated_s.mean()
        parts = np.zeros((len(values), len(times_s) + len(prompts)))
        for row, (schedule, prompt) in zip(parts, places, strict=True):
            row[[schedule, len(times_s) + prompt]] = 1
        roots = np.sqrt(weights)[:, None]
        inverse = np.linalg.pinv(roots * parts) * roots.T
        self._fitted, self._covariance, self._known = inverse @ values, inverse @ inverse.T, inverse @ parts
        left = np.eye(len(values)) - parts @ inverse
        squares, residuals = left.T @ (weights[:, None] * left), left @ values
        total = float(np.trace(squares)) if len(values) > np.linalg.matrix_rank(parts) else 0.0
        self.noise = sqrt(weights @ residuals**2 / total) if total else inf
        # degrees of freedom by Satterthwaite: all that are left, if all runs count alike
        degrees = max(1, round(total**2 / (squares**2).sum())) if total else 0
        self._error = t_quantile(degrees) * self.noise if degrees else inf

    def compares(self, one: str, other: str) -> bool:
        """Return whether both have runs, on prompts that they share or others link."""
        if one not in self._places or other not in self._places:
            return False
        wanted = self._difference(one, other)
        return bool(np.allclose(wanted @ self._known, wanted))

    def difference(self, one: str, other: str) -> tuple[float, float]:
        """Return how much farther the other is off, as a logarithm, and its half-width (90 %)."""
        if one == other:
            return 0.0, 0.0
        wanted = self._difference(one, other)
        return float(wanted @ self._fitted), self._error * sqrt(wanted @ self._covariance @ wanted)

    def _difference(self, one: str, other: str) -> NDArray[np.float64]:
        wanted = np.zeros(len(self._fitted))
        wanted[self._places[one]] -= 1
        wanted[self._places[other]] += 1
        return wanted


def ratio_by_rounds(recorded: Pairs, cost: tuple[float, float]) -> Ratio:
    """Return the ratio over all recorded prompts, of which some were run.

    The rounds of every recorded prompt are known, so that runs tell only their cost: the simulated ratio is corrected
    by `cost`, a result of `CommonFit.difference` (the ratio estimator of two-phase sampling).
    """
    return Ratio(
        value=float(np.sum(recorded.other) / np.sum(recorded.one)) * exp(cost[0]),
        num_pairs=len(recorded.one),
        prompts_error=prompts_error(recorded),
        machine_error=cost[1],
    )


def prompts_error(times_s: Pairs) -> float:
    """Return the half-width (90 %) of log(sum(other) / sum(one)) over prompts, by a delete-one jackknife.

    It is taken within kinds of prompts, which take turns in a draw (a stratified sample); all count as one kind where a
    kind has a single prompt. One prompt alone does not show it: it is infinite.
    """
    count = len(times_s.one)
    without_one, without_other = (np.sum(side) - np.asarray(side) for side in times_s[:2])
    if count < 2:
        return inf
    logs, kinds = np.log(without_other / without_one), np.asarray(times_s.kinds or [""] * count)
    alike = [logs[kinds == kind] for kind in dict.fromkeys(kinds.tolist())]
    if min(map(len, alike)) < 2:
        alike = [logs]
    variance = sum(len(own) / (len(own) - 1) * ((own - own.mean()) ** 2).sum() for own in alike)
    return t_quantile(count - len(alike)) * (count - 1) / count * sqrt(variance)


def pairs_needed(ratio: Ratio) -> int | None:
    """Return how many such prompts would decide which is faster; None for one prompt, or beyond `MOST_PAIRS`."""
    lead, shared = abs(log(ratio.value)), ratio.machine_error
    if ratio.num_pairs < 2 or lead <= shared:
        return None
    error = ratio.prompts_error / t_quantile(ratio.num_pairs - 1) * sqrt(ratio.num_pairs)
    for count in range(2, MOST_PAIRS + 1):
        if shared**2 + (t_quantile(count - 1) * error) ** 2 / count < lead**2:
            return count
    return None


Compare = Callable[[Schedule, Schedule], Ratio]
"""The second schedule's predicted time over the first one's."""


def comparer(profile: Profile, record: AcceptanceRecord, costs: Mapping[str, LaneCost] | None = None) -> Compare:
    """Return a function that compares two schedules on `profile` and `record`; `costs` as in `Evaluator`."""
    predict = cache(Evaluator(profile, record, costs=costs).predict)
    return lambda one, other: ratio_of(predict(one), predict(other))


def ratio_of(ours: Prediction, theirs: Prediction) -> Ratio:
    """Return the second prediction's time over the first one's; both are of one machine and the same prompts.

    Several texts of a prompt are one pair: they are more alike than those of other prompts.
    """
    one, other = (np.bincount(ours.prompt_numbers, side.prompt_decode_s).tolist() for side in (ours, theirs))
    return Ratio(
        value=theirs.tpot_s / ours.tpot_s,
        num_pairs=len(one),
        machine_error=ratio_error(ours.errors, theirs.errors),
        prompts_error=prompts_error(Pairs(one, other)),
    )
