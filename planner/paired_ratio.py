"""How many times as fast one thing is as another that met the same prompts, with an interval that counts them.

Both are measured, or both are predicted of the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Seconds of two schedules on the same prompts in the same order, and the kind of each prompt, where known."""

    one: Sequence[float]
    other: Sequence[float]
    kinds: Sequence[str] = ()

    def checked(self) -> tuple[Seconds, Seconds]:
        """Return both as arrays; `ValueError` where there is no pair, a time has no partner, or one is not positive."""
        ours, theirs = np.asarray(self.one, dtype=np.float64), np.asarray(self.other, dtype=np.float64)
        if len(ours) != len(theirs) or not len(ours):
            msg = f"times are compared in pairs; these are {len(ours)} and {len(theirs)}"
            raise ValueError(msg)
        if not (np.all(ours > 0) and np.all(theirs > 0)):
            msg = f"times must be positive, not {min(ours.min(), theirs.min())}"
            raise ValueError(msg)
        return ours, theirs


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """Total time of `other` over that of `one`, seconds of the same prompts in the same order; errors as of `Pairs`.

    The interval is Student's, around the logarithm of the ratio: every prompt's own log ratio deviates equally, and
    counts by its share of the time. (Jackknife and linearised ratio estimators know only the deviations of the long
    prompts; with few prompts their intervals are too narrow.) One prompt shows no deviation: its interval has no end.
    """
    ours, theirs = Pairs(one, other).checked()
    num_pairs = len(ours)
    value = float(theirs.sum() / ours.sum())
    if num_pairs == 1:
        return Ratio(value=value, num_pairs=1, prompts_error=inf)
    weights = (ours + theirs) / (ours + theirs).sum()
    error = float(np.log(theirs / ours).std(ddof=1) * np.sqrt((weights**2).sum()))
    return Ratio(value=value, num_pairs=num_pairs, prompts_error=t_quantile(num_pairs - 1) * error)


class CommonFit:
    """How far schedules are off their simulated times, from all their runs together.

    log(measured / simulated) of a run is the schedule's part, the prompt's part, and `noise` (a standard deviation)
    that is as large in all runs, however long they are; both parts are fitted by least squares. So the noise is known
    from all runs, and two schedules that ran few prompts together are also compared by way of the others.
    """

    def __init__(self, logs: Mapping[str, Mapping[str, float]]) -> None:
        """Fit log(measured / simulated), by schedule and prompt."""
        prompts = list(dict.fromkeys(prompt for runs in logs.values() for prompt in runs))
        self._places = {schedule: place for place, schedule in enumerate(logs)}
        runs = [
            (place, len(logs) + prompts.index(prompt), value)
            for place, own in enumerate(logs.values())
            for prompt, value in own.items()
        ]
        values, parts = np.array([value for *_, value in runs]), np.zeros((len(runs), len(logs) + len(prompts)))
        for row, (schedule, prompt, _) in zip(parts, runs, strict=True):
            row[[schedule, prompt]] = 1
        inverse = np.linalg.pinv(parts)
        self._fitted, self._covariance = inverse @ values, inverse @ inverse.T
        degrees = len(runs) - np.linalg.matrix_rank(parts)
        squares = float(((values - parts @ self._fitted) ** 2).sum())
        self.noise = sqrt(squares / degrees) if degrees else inf
        self._error = t_quantile(degrees) * self.noise if degrees else inf

    def difference(self, one: str, other: str) -> tuple[float, float]:
        """Return how much more the other is off, as a logarithm, and the half-width (90 %) of that."""
        if one == other:
            return 0.0, 0.0
        pair = [self._places[one], self._places[other]]
        (ours, shared), (_, theirs) = self._covariance[np.ix_(pair, pair)]
        mine, its = self._fitted[pair]
        return float(its - mine), self._error * sqrt(ours + theirs - 2 * shared)


def ratio_by_rounds(recorded: Pairs, cost: tuple[float, float]) -> Ratio:
    """Return the ratio over all recorded prompts, of which some were run; errors as of `Pairs`.

    The rounds of every recorded prompt are known, so runs have to tell only what these rounds really cost: the
    simulated ratio of all prompts is corrected by `cost`, how much further off the other's simulated times are as a
    logarithm, with its half-width (the ratio estimator of two-phase sampling).
    """
    ours, theirs = recorded.checked()
    return Ratio(
        value=float(theirs.sum() / ours.sum()) * exp(cost[0]),
        num_pairs=len(ours),
        prompts_error=prompts_error(recorded),
        machine_error=cost[1],
    )


def prompts_error(times_s: Pairs) -> float:
    """Return the half-width (90 %) of log(sum(other) / sum(one)) over prompts, by a delete-one jackknife.

    Where several prompts are of a kind, as kinds take turns in a draw, chance is only in how these differ among
    themselves (a stratified sample). Where no kind has two, all are of one; a single prompt shows nothing of its
    chance, which counts as none.
    """
    count = len(times_s.one)
    without_one, without_other = (np.sum(side) - np.asarray(side) for side in times_s[:2])
    if count < 2:
        return 0.0
    logs, kinds = np.log(without_other / without_one), np.asarray(times_s.kinds or [""] * count)
    alike = [logs[kinds == kind] for kind in dict.fromkeys(kinds.tolist())]
    if min(map(len, alike)) < 2:
        alike = [logs]
    variance = sum(len(own) / (len(own) - 1) * ((own - own.mean()) ** 2).sum() for own in alike)
    return t_quantile(count - len(alike)) * (count - 1) / count * sqrt(variance)


def pairs_needed(ratio: Ratio) -> int | None:
    """Return how many prompts like these would tell which is faster; None where `MOST_PAIRS` would not, or of one."""
    lead, shared = abs(log(ratio.value)), ratio.machine_error
    if ratio.num_pairs < 2 or lead <= shared:
        return None
    error = ratio.prompts_error / t_quantile(ratio.num_pairs - 1) * sqrt(ratio.num_pairs)
    for count in range(2, MOST_PAIRS + 1):
        if shared**2 + (t_quantile(count - 1) * error) ** 2 / count < lead**2:
            return count
    return None


Compare = Callable[[Schedule, Schedule], Ratio]
"""The ratio of the second schedule's time to the first one's, by prediction."""


def comparer(profile: Profile, record: AcceptanceRecord, costs: Mapping[str, LaneCost] | None = None) -> Compare:
    """A function that compares one schedule with another on `profile` and `record`; `costs` as in `evaluate`."""
    evaluator = Evaluator(profile, record, costs=costs)
    known: dict[Schedule, Prediction] = {}

    def prediction(schedule: Schedule) -> Prediction:
        if schedule not in known:
            known[schedule] = evaluator.predict(schedule)
        return known[schedule]

    return lambda one, other: ratio_of(prediction(one), prediction(other))


def ratio_of(ours: Prediction, theirs: Prediction) -> Ratio:
    """Return the second prediction's time over the first one's, of the same machine and prompts."""
    return Ratio(
        value=theirs.tpot_s / ours.tpot_s,
        num_pairs=len(ours.prompt_decode_s),
        machine_error=ratio_error(ours.errors, theirs.errors),
        prompts_error=prompts_error(Pairs(ours.prompt_decode_s, theirs.prompt_decode_s)),
    )
