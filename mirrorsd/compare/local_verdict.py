"""Stands in for `planner.measured_verdict` until that is there: the same names, as little as is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import stdev
from typing import Final, Literal

from decoding.schedule import Schedule
from planner.wording import capital, factor, milliseconds

_T_95: Final = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
"""95 % quantiles of Student's distribution for 1, 2, ... degrees of freedom; beyond them the last is wide enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times as fast one schedule is as another, with an interval (90 %) over `num_pairs` prompts."""

    value: float
    low: float
    high: float
    num_pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSchedule:
    """What a verdict after runs is made from.

    Attributes:
        name: as tables have it.
        schedule: what was run.
        predicted_s: time per token.
        seconds: measured decoding time of every prompt at the pace of calibration.
        tpot_s: the same per token.
    """

    name: str
    schedule: Schedule
    predicted_s: float
    seconds: tuple[float, ...]
    tpot_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredVerdict:
    """What the runs say.

    Attributes:
        pays: whether speculation is faster than plain decoding.
        speedup: the best speculation over the best plain placement by prediction; None if either was not run.
        recommended: the schedule to use.
        text: all of it in words.
    """

    pays: Literal["yes", "no", "cannot_tell"]
    speedup: Ratio | None
    recommended: MeasuredSchedule
    text: str


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """Total time of `other` over that of `one`, seconds of the same prompts in the same order."""
    value, count = sum(other) / sum(one), len(one)
    if count < 2:
        return Ratio(value=value, low=0.0, high=inf, num_pairs=count)
    weights = [(mine + theirs) / (sum(one) + sum(other)) for mine, theirs in zip(one, other, strict=True)]
    spread = stdev(log(theirs / mine) for mine, theirs in zip(one, other, strict=True))
    error = spread * sqrt(sum(weight**2 for weight in weights))
    wide = exp(_T_95[min(count - 2, len(_T_95) - 1)] * error)
    return Ratio(value=value, low=value / wide, high=value * wide, num_pairs=count)


def judge_measured(measured: Sequence[MeasuredSchedule]) -> MeasuredVerdict:
    """Decide by the runs: what was predicted fastest stands, unless another was faster beyond doubt."""
    ranked = sorted(measured, key=lambda one: one.predicted_s)
    plain = next((one for one in ranked if one.schedule.traits.window == "none"), None)
    drafting = [one for one in ranked if one.schedule.traits.window != "none"]
    if plain is None or not drafting:
        text = "Cannot tell: plain decoding and speculation were not both run."
        return MeasuredVerdict(pays="cannot_tell", speedup=None, recommended=ranked[0], text=text)
    best, quickest = drafting[0], min(drafting, key=lambda one: one.tpot_s)
    if paired_ratio(quickest.seconds, best.seconds).low > 1:
        best = quickest
    speedup = paired_ratio(best.seconds, plain.seconds)
    pays: Literal["yes", "no", "cannot_tell"]
    pays = "yes" if speedup.low > 1 else "no" if speedup.high < 1 else "cannot_tell"
    recommended = best if speedup.value >= 1 else plain
    return MeasuredVerdict(
        pays=pays, speedup=speedup, recommended=recommended, text=_words(pays, speedup, best, plain, recommended)
    )


def _words(
    pays: str, speedup: Ratio, best: MeasuredSchedule, plain: MeasuredSchedule, recommended: MeasuredSchedule
) -> str:
    begin = {
        "yes": "Yes, speculation pays here",
        "no": "No, speculation does not pay here",
        "cannot_tell": "Cannot tell from these runs whether speculation pays here",
    }[pays]
    prompts = f"{speedup.num_pairs} prompts" if speedup.num_pairs != 1 else "a single prompt shows no interval"
    low, high = factor(speedup.low), "no end" if speedup.high == inf else factor(speedup.high)
    between = prompts if speedup.num_pairs < 2 else f"90 %: {low} to {high}, {prompts}"
    likely = " This is only the likelier choice." if pays == "cannot_tell" else ""
    return (
        f"{begin}: {best.name} was measured at {factor(speedup.value)} the speed of {plain.name} ({between}; "
        f"{milliseconds(best.tpot_s)} and {milliseconds(plain.tpot_s)} per token at the machine's speed during "
        f"calibration). {capital(recommended.name)} is recommended.{likely}"
    )
