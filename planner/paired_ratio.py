"""The ratio of two schedules' times over the same prompts, with its interval; both are measured, or both predicted."""

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
"""The most prompts that are ever suggested for telling which of two schedules is faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The time of a schedule `other` over that of a schedule `one` on the same prompts: above 1, `one` is faster.

    Attributes:
        num_pairs: prompts that both schedules have times of.
        prompts_error: half-width (90 %) of log(value) from sampling prompts; infinite where it is not known.
        machine_error: half-width from errors of predicted times, or of the fitted cost of rounds in runs.
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
        """The ratio on these very prompts, not on others like them: without `prompts_error`."""
        return replace(self, prompts_error=0.0)

    @property
    def _factor(self) -> float:
        return exp(hypot(self.machine_error, self.prompts_error))

    @property
    def outcome(self) -> Outcome:
        """Whether `one` is faster or slower: the whole interval lies on one side of 1."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "cannot tell"


class Pairs(NamedTuple):
    """Seconds of two schedules on the same prompts in the same order, and the kind of each prompt, where known."""

    one: Sequence[float]
    other: Sequence[float]
    kinds: Sequence[str] = ()


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """Return the total time of `other` over that of `one`: seconds (above zero) on the same prompts.

    The interval is Student's t of the logarithm: the log ratios of prompts are assumed to have one variance, and each
    is weighted by the prompt's share of the time. (With few prompts, jackknife and linearised ratio estimators give
    too narrow intervals: they see only how long prompts deviate.) With one prompt the interval is unbounded.
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
    """How far off simulated times are, by schedule: one weighted least-squares fit to the runs of all schedules.

    The model: log(measured / simulated) of a run is the schedule's term plus the prompt's term plus `noise` (a standard
    deviation). Two schedules that share few prompts are thus compared through a third one. A run's weight is its
    simulated seconds, since the terms are to correct a ratio of total times. The noise is assumed equal in all runs;
    it is rather larger in short ones, so the error is not underestimated.
    """

    def __init__(self, times_s: Mapping[str, Mapping[str, tuple[float, float]]]) -> None:
        """Fit the (measured, simulated) seconds of runs, by schedule and prompt."""
        prompts = list(dict.fromkeys(prompt for runs in times_s.values() for prompt in runs))
        self._places = {schedule: place for place, schedule in enumerate(times_s)}
        terms = [
            [place, len(times_s) + prompts.index(prompt)]
            for place, runs in enumerate(times_s.values())
            for prompt in runs
        ]
        measured_s, simulated_s = np.array([pair for runs in times_s.values() for pair in runs.values()]).T
        values, weights = np.log(measured_s / simulated_s), simulated_s / simulated_s.mean()
        design = np.zeros((len(values), len(times_s) + len(prompts)))  # [run, term]
        for row, its_terms in zip(design, terms, strict=True):
            row[its_terms] = 1
        roots = np.sqrt(weights)[:, None]
        inverse = np.linalg.pinv(roots * design) * roots.T
        self._fitted, self._covariance, self._known = inverse @ values, inverse @ inverse.T, inverse @ design
        residual_of = np.eye(len(values)) - design @ inverse
        squares, residuals = residual_of.T @ (weights[:, None] * residual_of), residual_of @ values
        total = float(np.trace(squares)) if len(values) > np.linalg.matrix_rank(design) else 0.0
        self.noise = sqrt(weights @ residuals**2 / total) if total else inf
        # Satterthwaite's degrees of freedom; with equal weights they are the runs minus the rank of the design.
        degrees = max(1, round(total**2 / (squares**2).sum())) if total else 0
        self._error = t_quantile(degrees) * self.noise if degrees else inf

    def compares(self, one: str, other: str) -> bool:
        """Return whether the runs connect the two schedules, by shared prompts or through other schedules."""
        if one not in self._places or other not in self._places:
            return False
        wanted = self._difference(one, other)
        return bool(np.allclose(wanted @ self._known, wanted))

    def difference(self, one: str, other: str) -> tuple[float, float]:
        """Return the term of `other` minus that of `one` (a logarithm), and its half-width (90 %)."""
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
    """Return the ratio over all recorded prompts, although only some of them were run.

    The rounds of every recorded prompt are known, so runs are needed only for what a round costs: the simulated ratio
    is corrected by `cost`, a result of `CommonFit.difference` (the ratio estimator of two-phase sampling).
    """
    return Ratio(
        value=float(np.sum(recorded.other) / np.sum(recorded.one)) * exp(cost[0]),
        num_pairs=len(recorded.one),
        prompts_error=prompts_error(recorded),
        machine_error=cost[1],
    )


def prompts_error(times_s: Pairs) -> float:
    """Return the half-width (90 %) of log(sum(other) / sum(one)) over prompts, by a delete-one jackknife.

    The sample is stratified by kind of prompt (samples take kinds in turn), so the jackknife is too, unless a kind has
    a single prompt. With one prompt in all, the half-width is infinite.
    """
    count = len(times_s.one)
    without_one, without_other = (np.sum(side) - np.asarray(side) for side in times_s[:2])
    if count < 2:
        return inf
    logs, kinds = np.log(without_other / without_one), np.asarray(times_s.kinds or [""] * count)
    strata = [logs[kinds == kind] for kind in dict.fromkeys(kinds.tolist())]
    if min(map(len, strata)) < 2:
        strata = [logs]
    variance = sum(len(some) / (len(some) - 1) * ((some - some.mean()) ** 2).sum() for some in strata)
    return t_quantile(count - len(strata)) * (count - 1) / count * sqrt(variance)


def pairs_needed(ratio: Ratio) -> int | None:
    """Return how many prompts like these would decide which schedule is faster.

    None where one prompt shows no spread, where more than `MOST_PAIRS` are needed, or where no number can decide
    because `machine_error`, which prompts do not reduce, covers the whole difference.
    """
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
    """Return the second prediction's time over the first one's; both are for the same machine and prompts.

    All texts of a prompt count as one pair: they are more alike than texts of different prompts.
    """
    one, other = (np.bincount(ours.prompt_numbers, side.prompt_decode_s).tolist() for side in (ours, theirs))
    return Ratio(
        value=theirs.tpot_s / ours.tpot_s,
        num_pairs=len(one),
        machine_error=ratio_error(ours.errors, theirs.errors),
        prompts_error=prompts_error(Pairs(one, other)),
    )
