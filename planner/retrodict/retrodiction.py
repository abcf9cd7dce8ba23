"""Compares public measurements of speculation with predictions from shipped data and with two simple predictors.

Each case is asked three questions: `ratio` (given the plain speed and, where known, acceptance, what is the speed-up?),
`absolute` (given only device, engine and models, what is the speed?) and `plain` (the same without speculation).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal, NamedTuple, get_args

from decoding.errors import MirrorsdError, cut, shown
from planner.retrodict.cases import Case, PublishedSpeed, UnreadableCase
from planner.retrodict.predicted_speeds import PredictedCase, PredictedSpeed
from planner.retrodict.speed_settings import FORMS, setting_of
from planner.wording import counted

_Question = Literal["ratio", "absolute", "plain"]
QUESTIONS: Final[tuple[_Question, ...]] = get_args(_Question)
IN_WORDS: Final[dict[str, str]] = {
    "ratio": "Speed-up over plain decoding, whose speed is given",
    "absolute": "Tokens/s of speculation, given only device, engine and models",
    "plain": "Tokens/s of plain decoding, given only device, engine and model",
}
BASELINES: Final[dict[str, tuple[_Question, ...]]] = {
    "always_1x": ("ratio", "absolute"),
    "bandwidth_and_leviathan": QUESTIONS,
}
"""Two simple predictors and the questions that they answer: "no gain", and bandwidth with Leviathan's formula."""
_BESIDE: Final = ("for predicting no gain", "by bandwidth and Leviathan's formula")
_TOLD: Final[dict[_Question, tuple[str, tuple[str, ...]]]] = {
    "ratio": ("Gain of speculation", _BESIDE),
    "absolute": ("Speed of speculation", _BESIDE),
    "plain": ("Speed of plain decoding", ("by bandwidth",)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrodicted:
    """The answer to one question about one published speed, in tokens per second or as a speed-up.

    Attributes:
        case, question: what was asked.
        speed: the published speed with its setting.
        published: the measured answer.
        predicted: the answer predicted from shipped data.
        others: the answers of the two `BASELINES`.
    """

    case: Case
    question: _Question
    speed: PublishedSpeed
    published: float
    predicted: PredictedSpeed
    others: tuple[float, float]

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted.value / self.published - 1

    @property
    def is_held(self) -> bool:
        """Whether the predicted interval contains what was measured."""
        return self.predicted.low <= self.published <= self.predicted.high

    def as_entry(self) -> dict[str, Any]:
        """Return it as a JSON object of a results file."""
        found = self.predicted
        return {
            **{name: getattr(self.case, name) for name in ("id", "device", "engine", "source")},
            "question": self.question,
            "drafted": int(self.speed.key) if self.speed.key.isdecimal() else self.speed.key,
            "num_drafted": self.speed.drafted,
            "is_drafted_known": self.speed.is_drafted_known,
            "context": self.speed.context,
            "published": self.published,
            "predicted": found.value,
            "low": found.low,
            "high": found.high,
            "error": self.error,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A question about a case (by its name) that cannot be answered, and why."""

    id: str
    question: _Question
    reason: str


class UnreadField(NamedTuple):
    """An unknown field, the known one that may have been meant, and the cases that have it."""

    field: str
    near: str | None
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retrodiction:
    """The results for all cases of a file."""

    found: tuple[Retrodicted, ...]
    skipped: tuple[Skipped, ...]
    unread: tuple[UnreadField, ...]

    def summary(self) -> dict[str, Any]:
        """Return errors and coverage by question, the errors of the simple predictors, and what was skipped."""
        told: dict[str, Any] = {question: self._judged(question) for question in QUESTIONS}
        told["baselines"] = {
            name: {
                question: _median_error(self.of(question), [one.others[place] for one in self.of(question)])
                for question in questions
            }
            for place, (name, questions) in enumerate(BASELINES.items())
        }
        told["skipped"] = {
            "count": len(self.skipped),
            "cases": [{"id": one.id, "question": one.question, "reason": one.reason} for one in self.skipped],
        }
        told["fields_not_read"] = [one._asdict() for one in self.unread]
        told["acceptance_of_other_settings"] = self.lost_shares
        return told

    def of(self, question: _Question) -> Sequence[Retrodicted]:
        """Return the answers to one question."""
        return [one for one in self.found if one.question == question]

    @property
    def lost_shares(self) -> dict[str, list[str]]:
        """Settings, by case, with default acceptance although the case has acceptance of other settings."""
        found = defaultdict[str, list[str]](list)
        for one in self.of("ratio"):
            if one.speed.share is None and any(share is not None for share in one.case.accepted_share.values()):
                found[one.case.id].append(one.speed.key)
        return dict(found)

    def _judged(self, question: _Question) -> dict[str, Any]:
        own = self.of(question)
        coverage = sum(one.is_held for one in own) / len(own) if own else None
        error = _median_error(own, [one.predicted.value for one in own])
        return {"num": len(own), "median_abs_error": error, "coverage": coverage}


def _median_error(found: Sequence[Retrodicted], predicted: Sequence[float]) -> float | None:
    errors = [abs(value / one.published - 1) for one, value in zip(found, predicted, strict=True)]
    return median(errors) if errors else None


def worth(found: Retrodiction) -> str:
    """Return in words how far off the predictions are, and how far off the simple predictors."""
    summary = found.summary()
    told = []
    for question, (what, beside) in _TOLD.items():
        own = summary[question]
        if own["num"]:
            errors = [one[question] for one in summary["baselines"].values() if question in one]
            others = " and ".join(f"{100 * error:.0f} % {how}" for error, how in zip(errors, beside, strict=True))
            error = f"median error {100 * own['median_abs_error']:.0f} % over {counted(own['num'], 'speed')}"
            told.append(f"{what}: {error} ({others}); {100 * own['coverage']:.0f} % lie in their intervals.")
    return " ".join(told) or "Nothing was predicted."


def retrodict(cases: Iterable[Case | UnreadableCase]) -> Retrodiction:
    """Predict every speed of the cases from shipped data; what is skipped is listed with the reason."""
    found, skipped = list[Retrodicted](), list[Skipped]()
    unread = defaultdict[tuple[str, str | None], list[str]](list)
    for case in cases:
        for one in _of_case(case):
            found.append(one) if isinstance(one, Retrodicted) else skipped.append(one)
        for field in case.unread().items() if isinstance(case, Case) else ():
            unread[field].append(case.id)
    fields = (UnreadField(*field, tuple(names)) for field, names in unread.items())
    return Retrodiction(tuple(found), tuple(skipped), tuple(fields))


def notes(found: Retrodiction) -> Iterator[str]:
    """Yield notes on what a file contains that the predictions did not use."""
    fields = [
        one.field + (f" ({one.near}?)" if one.near else "") + f" in {counted(len(one.cases), 'case')}"
        for one in found.unread
    ]
    lost = [f"{name} ({', '.join(settings)})" for name, settings in found.lost_shares.items()]
    if fields:
        yield cut(f"Fields that are not read: {'; '.join(fields)}.")
    if lost:
        yield f"Default acceptance was used where a case gives acceptance only for other settings: {'; '.join(lost)}."


def _of_case(case: Case | UnreadableCase) -> Iterator[Retrodicted | Skipped]:
    if isinstance(case, UnreadableCase):
        yield from _all_skipped(case.id, case.reason)
        return
    try:
        predictor = PredictedCase.of(case)
    except MirrorsdError as error:
        yield from _all_skipped(case.id, str(error))
        return
    for question in QUESTIONS:
        yield from _of_question(predictor, question)


def _of_question(predictor: PredictedCase, question: _Question) -> Iterator[Retrodicted | Skipped]:
    case, reason = predictor.case, _unanswerable(predictor, question)
    reasons = _unread(case, question) if reason is None else [reason]
    yield from (Skipped(id=case.id, question=question, reason=one) for one in reasons)
    if reason is not None:
        return
    for one in case.plain if question == "plain" else case.measured:
        try:
            yield _answer(predictor, question, one)
        except MirrorsdError as error:
            yield Skipped(id=case.id, question=question, reason=str(error))


def _unread(case: Case, question: _Question) -> list[str]:
    """Return a reason for every speed whose setting cannot be read."""
    told = case.plain_tokens_per_s if question == "plain" else case.published_tokens_per_s
    unread = (key for key, speed in told.items() if speed is not None and setting_of(key) is None)
    return [f"the setting of a speed should be {FORMS}, found {shown(key)}" for key in unread]


def _all_skipped(name: str, reason: str) -> Iterator[Skipped]:
    yield from (Skipped(id=name, question=question, reason=reason) for question in QUESTIONS)


_OFFLOADED: Final = re.compile(
    r"offload|(?:expert|weight|layer)s?[^.;]* (?:host|cpu|main memory|ram)\b|cpu-?moe|ktransformers|powerinfer",
    re.IGNORECASE,
)
"""Words of cases whose weights are partly read through a link; there, further rows of a pass are nearly free."""
_MOST_NEEDED: Final = 1.3
"""A target that needs more than this share of the memory was not held by it, whatever the labels say."""


def _unanswerable(predictor: PredictedCase, question: _Question) -> str | None:
    case, is_ratio = predictor.case, question == "ratio"
    if not is_ratio and predictor.machine.is_stand_in:
        return f"no sheet gives the bandwidth of {case.device} or its links: only its speed-ups can be predicted"
    needed, told = predictor.memory_needed, f"{case.device}; {case.engine}; {case.note}"
    is_size_known = predictor.are_weights_told and not predictor.machine.is_stand_in
    is_apart = _OFFLOADED.search(told) or (needed > _MOST_NEEDED and is_size_known)
    if needed > 1 and (is_apart or not is_ratio):
        return f"{predictor.target} does not fit into {case.device}: how long the rest took elsewhere is not known"
    if not is_ratio and not predictor.are_weights_known:
        return "the case does not say how weights are stored"
    if question != "absolute" and not case.plain_tokens_per_s:
        return "no plain speed is given"
    if question != "plain" and not [*case.measured, *_unread(case, question)]:
        return "no speed of speculation is given"
    return None


def _answer(predictor: PredictedCase, question: _Question, one: PublishedSpeed) -> Retrodicted | Skipped:
    case, published, bandwidth = predictor.case, one.tokens_per_s, predictor.naive_plain
    if question == "plain":
        found, others = predictor.plain(one.context), (bandwidth, bandwidth)
    elif question == "absolute":
        found, others = predictor.absolute(one), (bandwidth, bandwidth * predictor.naive_ratio(one, None))
    elif one.plain is None:
        return Skipped(id=case.id, question=question, reason=f"no plain speed is given for {one.key}")
    else:
        published /= one.plain
        found, others = predictor.ratio(one), (1.0, predictor.naive_ratio(one, one.share))
    return Retrodicted(
        case=case,
        question=question,
        speed=one,
        published=published,
        predicted=found,
        others=others,
    )
