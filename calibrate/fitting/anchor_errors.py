"""How far the anchors of a calibration may be off: an error common to all lanes, and each lane's own.

A lane's times rest on the mean of its anchors, while the machine changes its speed. Cut into stretches of time, anchors
show how much of that change all lanes share. All errors are half-widths at 90 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, sqrt
from statistics import fmean, stdev
from typing import Final, NamedTuple

from calibrate.fitting.ratios import NORMAL_90
from decoding.student_t import t_quantile

_STRETCHES: Final = 8


class AnchorErrors(NamedTuple):
    """Errors of the means of anchors: of all lanes together, and of each lane beyond that."""

    common: float
    own: dict[str, float]


def anchor_errors(taken: Mapping[str, Sequence[tuple[float, float]]]) -> AnchorErrors:
    """From (time, seconds) of every lane's anchors, in the order taken.

    Lane l in stretch b has the mean log time m_l + common_b + own_lb; standard errors over stretches, by Student's t.
    What is common is known as the mean over lanes only, which takes a share of every lane's own: it is given back.
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
    own_quantile = quantile * sqrt(len(taken) / max(1, len(taken) - 1))
    return AnchorErrors(quantile * stdev(common), {lane: own_quantile * stdev(values) for lane, values in own.items()})


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
