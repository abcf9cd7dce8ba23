"""The one answer of a page: headline, tiles, badges and recommendation are read from it, so that they agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Final, Literal

from decoding.schedule import Schedule
from planner.report.report_data import MeasuredRatio, MeasuredVerdict, ReportData
from planner.verdict import PlanVerdict
from planner.wording import counted, error_percent, factor, percent, schedule_name, tokens_per_second

World = Literal["measured", "predicted"]

_WORD: Final = {"yes": "Yes", "no": "No"}
_MEANING: Final = {
    "Yes": "speculation is faster than plain decoding",
    "No": "speculation is not faster than plain decoding",
    "Cannot tell": "whether speculation is faster than plain decoding",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the page says above all else.

    Attributes:
        word: *Yes*, *No* or *Cannot tell*.
        headline: the answer in a sentence.
        world: where it is from.
        speedup: speculation over plain decoding; None if that is not known.
        interval: of the speed-up; None if it has no ends.
        schedule: the one that is recommended; None if none is.
        reasons: groups of sentences by their heading.
        background: the same of a prediction that runs have overtaken; empty where there is none.
    """

    word: str
    headline: str
    world: World
    speedup: float | None
    interval: tuple[float, float] | None
    schedule: Schedule | None
    reasons: dict[str, tuple[str, ...]]
    background: dict[str, tuple[str, ...]]


def answer_of(data: ReportData) -> Answer:
    """By the runs where they were judged, by the prediction where they were not."""
    if data.measured is None:
        return _predicted(data)
    return _measured(data.measured, data.plan.verdict)


def _predicted(data: ReportData) -> Answer:
    verdict = data.plan.verdict
    speedup, interval = _value_and_ends(verdict.speedup)
    return Answer(
        word=_WORD.get(verdict.pays, "Cannot tell"),
        headline=verdict.headline,
        world="predicted",
        speedup=speedup,
        interval=interval,
        schedule=data.plan.search.winner.schedule,
        reasons={
            "The choice": verdict.choice,
            "Why": verdict.because,
            "What would change it": verdict.changes,
        },
        background={},
    )


def _measured(verdict: MeasuredVerdict, predicted: PlanVerdict) -> Answer:
    speedup, interval = _value_and_ends(verdict.speedup)
    return Answer(
        word=_WORD.get(verdict.pays, "Cannot tell"),
        headline=verdict.headline,
        world="measured",
        speedup=speedup,
        interval=interval,
        schedule=None if verdict.winner is None else verdict.winner.schedule,
        reasons={"What the runs showed": verdict.sentences},
        background={
            "The prediction": (predicted.headline, *predicted.choice),
            "Why": predicted.because,
            "What would change it": predicted.changes,
        },
    )


def _value_and_ends(speedup: MeasuredRatio | None) -> tuple[float | None, tuple[float, float] | None]:
    """A ratio and the ends of its interval, None where there are none."""
    if speedup is None:
        return None, None
    has_ends = speedup.low > 0 and isfinite(speedup.high)
    return speedup.value, (speedup.low, speedup.high) if has_ends else None


def tiles(data: ReportData) -> Iterator[tuple[str, str]]:
    """(number, what it is) in large type: the answer, the speed of what is recommended, and how far to trust it."""
    answer = answer_of(data)
    if answer.speedup is not None:
        yield _answer_tile(answer, answer.speedup)
    speed = _speed(data, answer)
    if speed is not None:
        yield tokens_per_second(speed), f"{answer.world}, with what is recommended"
    yield _trust_tile(data)


def recommended_name(data: ReportData, schedule: Schedule) -> str:
    """The schedule as the table calls it, or in a few words where the table does not have it."""
    for name, result in zip(data.names, data.results, strict=True):
        if result.candidate.schedule == schedule:
            return name
    return schedule_name(schedule, "pooled" if schedule.is_pooled else "split")


def _answer_tile(answer: Answer, speedup: float) -> tuple[str, str]:
    """The speed-up where all of it is on the answer's side of one; else the answer's word, never another number."""
    low, high = answer.interval or (speedup, speedup)
    between = f" ({factor(low)} to {factor(high)})" if answer.interval else ""
    if {"Yes": min(low, speedup) > 1, "No": max(high, speedup) < 1}.get(answer.word, False):
        return factor(speedup), f"the speed of plain decoding, {answer.world}{between}"
    meaning = f"{_MEANING[answer.word]}, by what was {answer.world}"
    return answer.word, meaning + between if answer.word == "Cannot tell" and low < 1 < high else meaning


def _speed(data: ReportData, answer: Answer) -> float | None:
    """Time per token of what is recommended, in the answer's own world."""
    for result in data.results:
        if result.candidate.schedule == answer.schedule:
            return result.measured_s if answer.world == "measured" else result.predicted_s
    found = [one.tpot_s for one in data.plan.search.candidates if one.schedule == answer.schedule]
    return found[0] if found and answer.world == "predicted" else None


def _trust_tile(data: ReportData) -> tuple[str, str]:
    if not data.errors:
        expected = percent(data.plan.profile.relative_error)
        return f"±{expected}", "expected of all predicted times together; nothing was run yet"
    label = f"median error of the prediction over {counted(len(data.errors), 'schedule')}"
    if data.errors_at_anchor:
        at_anchor = error_percent(median(abs(error) for error in data.errors_at_anchor))
        label += f", as calibrated; {at_anchor} at the speed of the anchors"
    return error_percent(median(abs(error) for error in data.errors)), label
