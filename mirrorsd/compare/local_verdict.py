"""Stands in for the planner's `paired_ratio`, `measured_runs` and `measured_verdict` until they are there.

The same names, and as little behind them as is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from statistics import stdev
from typing import Final, Literal, NamedTuple

from decoding.schedule import Schedule
from planner.wording import factor

Pays = Literal["yes", "no", "cannot_tell"]
_T_95: Final = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
"""95 % quantiles of Student's distribution for 1, 2, ... degrees of freedom; beyond them the last is wide enough."""


class PromptTime(NamedTuple):
    """What one prompt took: seconds of decoding, and the tokens that were committed in them."""

    seconds: float
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSchedule:
    """A schedule that was run: its name in tables, its predicted time per token, and what each prompt took."""

    name: str
    schedule: Schedule
    predicted_s: float
    prompts: Mapping[str, PromptTime]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times as fast one schedule is as another, with an interval (90 %) over `num_pairs` prompts."""

    value: float
    low: float
    high: float
    num_pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredVerdict:
    """What the runs say: whether speculation pays, by how much, and the schedule to use."""

    pays: Pays
    speedup: Ratio | None
    winner: MeasuredSchedule | None
    headline: str
    sentences: tuple[str, ...] = ()
    badges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All of it, as a paragraph."""
        return " ".join((self.headline, *self.sentences))


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


def judge_measured(schedules: Sequence[MeasuredSchedule]) -> MeasuredVerdict:
    """Decide by the drafting and the plain schedule predicted fastest; recommend the one that was measured faster."""
    ranked = sorted(schedules, key=lambda one: one.predicted_s)
    plain = next((one for one in ranked if one.schedule.traits.window == "none"), None)
    drafting = next((one for one in ranked if one.schedule.traits.window != "none"), None)
    if plain is None or drafting is None:
        headline = "Cannot tell from these runs whether speculation pays here: it and plain decoding were not both run."
        return MeasuredVerdict(pays="cannot_tell", speedup=None, winner=ranked[0], headline=headline)
    speedup = paired_ratio(_seconds(drafting), _seconds(plain))
    pays: Pays = "yes" if speedup.low > 1 else "no" if speedup.high < 1 else "cannot_tell"
    begin = {
        "yes": "Yes, speculation pays here",
        "no": "No, speculation does not pay here",
        "cannot_tell": "Cannot tell from these runs whether speculation pays here",
    }[pays]
    prompts = f"{speedup.num_pairs} prompts" if speedup.num_pairs > 1 else "a single prompt"
    ends = f", 90 %: {factor(speedup.low)} to {factor(speedup.high)}" if speedup.num_pairs > 1 else ""
    winner = drafting if speedup.value >= 1 else plain
    return MeasuredVerdict(
        pays=pays,
        speedup=speedup,
        winner=winner,
        headline=f"{begin}: {factor(speedup.value)} the speed of plain decoding, measured on {prompts}{ends}.",
        sentences=(f'Recommended is "{winner.name}".',),
        badges={winner.name: ("recommended",)},
    )


def _seconds(one: MeasuredSchedule) -> list[float]:
    return [prompt.seconds for prompt in one.prompts.values()]
