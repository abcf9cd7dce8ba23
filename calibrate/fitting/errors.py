"""What the numbers of a profile may be off by: common to all lanes, a lane's own, and by held-back checks.

Everything is a half-width at 90 %. A lane's times rest on the mean of its anchors, which is a mean over a machine that
changes its speed: cut into stretches of time, it shows how much of that all lanes share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log, sqrt
from statistics import fmean, stdev
from typing import Final, NamedTuple

from calibrate.fitting.ratios import NORMAL_90
from decoding.student_t import t_quantile

_STRETCHES: Final = 8
_LEAST_CHECKS: Final = 3


class AnchorErrors(NamedTuple):
    """What the means of anchors may be off by: all lanes together, and each lane beyond that."""

    common: float
    own: dict[str, float]


class Check(NamedTuple):
    """A held-back run: the logarithm of predicted over measured time, and what it may be by the errors known.

    Attributes:
        lane: of the target.
        residual: log(predicted / measured), both at the speed of the run's anchors.
        model: standard deviation of the prediction by the errors of the tables it used.
        chance: standard deviation of the measurement, by its anchors.
    """

    lane: str
    residual: float
    model: float
    chance: float


def anchor_errors(taken: Mapping[str, Sequence[tuple[float, float]]]) -> AnchorErrors:
    """From (time, seconds) of every lane's anchors, in the order taken.

    Lane l in stretch b has the mean log time m + common_b + own_lb; standard errors over stretches, by Student's t.
    """
    count = min([_STRETCHES, *(len(samples) // 2 for samples in taken.values())])
    if count < 2:
        spread = {lane: NORMAL_90 * _log_deviation([seconds for _, seconds in own]) for lane, own in taken.items()}
        return AnchorErrors(max(spread.values(), default=0.0), dict.fromkeys(taken, 0.0))
    start_s = min(samples[0][0] for samples in taken.values())
    length_s = (max(samples[-1][0] for samples in taken.values()) - start_s) / count or 1.0
    logs = {lane: _stretches(samples, start_s, length_s, count) for lane, samples in taken.items()}
    means = {lane: fmean(values) for lane, values in logs.items()}
    common = [fmean(values[place] - means[lane] for lane, values in logs.items()) for place in range(count)]
    own = {
        lane: [value - means[lane] - shift for value, shift in zip(values, common, strict=True)]
        for lane, values in logs.items()
    }
    quantile = t_quantile(count - 1) / sqrt(count)
    return AnchorErrors(quantile * stdev(common), {lane: quantile * stdev(values) for lane, values in own.items()})


class CheckErrors(NamedTuple):
    """What checks show beyond the errors known: common to all lanes, a lane's own, and that of single schedules."""

    common: float
    own: dict[str, float]
    schedules: float


def check_errors(checks: Sequence[Check], lanes: Iterable[str]) -> CheckErrors:
    """How far checks are off together and by lane, where that is no chance, and how they scatter about it."""
    residuals = [check.residual for check in checks]
    common = _certain_mean(residuals)
    by_lane = {lane: [check.residual - common for check in checks if check.lane == lane] for lane in lanes}
    own = {lane: _certain_mean(values) for lane, values in by_lane.items()}
    excess = [
        (check.residual - common - own.get(check.lane, 0.0)) ** 2 - check.chance**2 - check.model**2 for check in checks
    ]
    scatter = sqrt(max(0.0, fmean(excess))) if excess else 0.0
    quantile = t_quantile(len(checks) - 1) if len(checks) > 1 else NORMAL_90
    return CheckErrors(abs(common), {lane: abs(value) for lane, value in own.items()}, quantile * scatter)


def _certain_mean(values: Sequence[float]) -> float:
    """The mean where its interval leaves zero out; else zero, as for fewer than three values."""
    if len(values) < _LEAST_CHECKS:
        return 0.0
    mean = fmean(values)
    return mean if abs(mean) > t_quantile(len(values) - 1) * stdev(values) / sqrt(len(values)) else 0.0


def _stretches(samples: Sequence[tuple[float, float]], start_s: float, length_s: float, count: int) -> list[float]:
    """Mean log seconds of every stretch of time; one without an anchor is like the one before."""
    values: list[list[float]] = [[] for _ in range(count)]
    for at_s, seconds in samples:
        values[min(count - 1, int((at_s - start_s) / length_s))].append(log(seconds))
    last = fmean(log(seconds) for _, seconds in samples)
    found = []
    for stretch in values:
        last = fmean(stretch) if stretch else last
        found.append(last)
    return found


def _log_deviation(values: Sequence[float]) -> float:
    return stdev(map(log, values)) if len(values) > 1 else 0.0
