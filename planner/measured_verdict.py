"""The answer after real runs: what was measured decides, paired by prompt, and the prediction stands next to it.

Headline, recommended schedule, badges and sentences are read from one `MeasuredVerdict`, so that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from decoding.schedule import Schedule
from planner.claim import Claim, in_words, more_prompts
from planner.kinds import KINDS, kind_of
from planner.measured_runs import MeasuredSchedule, Runs
from planner.paired_ratio import Outcome, Ratio
from planner.wording import counted, factor, listing

Pays = Literal["yes", "no", "cannot_tell"]
"""Whether speculation beats plain decoding, as far as that can be told."""
Badge = Literal["recommended", "predicted fastest", "measured fastest"]

PAYS: Final[Mapping[Outcome, Pays]] = {"faster": "yes", "slower": "no", "cannot tell": "cannot_tell"}
"""The answer that a comparison of the best drafting with the best plain schedule gives."""
_ORDER: Final = list(KINDS)
_MOST_NAMES: Final = 3
_CANNOT_TELL: Final = "Cannot tell from these runs whether speculation pays here"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredVerdict:
    """What the runs say.

    Attributes:
        pays: *yes* if the drafting schedule predicted fastest was faster than every plain one that was run, *no* if a
            plain one was faster than every drafting one; each beyond its interval.
        speedup: measured speed of the drafting schedule predicted fastest over that of the plain one predicted
            fastest. Chosen by prediction, the two owe nothing to the luck of the runs; only a *no* is against the
            plain schedule that it is due to. None if one of them is missing.
        predicted_speedup: what had been predicted of the same two.
        winner: the recommended schedule; None if none finished.
        headline: the answer in a sentence.
        sentences: all that follows from the runs, the prediction next to it.
        claims: everything that headline and sentences say of the order of two schedules.
        badges: for every schedule that was run what it is best at.
    """

    pays: Pays
    speedup: Ratio | None
    predicted_speedup: float | None
    winner: MeasuredSchedule | None
    headline: str
    sentences: tuple[str, ...]
    claims: tuple[Claim, ...]
    badges: Mapping[str, tuple[Badge, ...]]

    @property
    def text(self) -> str:
        """All of it, as a paragraph."""
        return " ".join((self.headline, *self.sentences))


def judge_measured(
    schedules: Sequence[MeasuredSchedule],
    *,
    predicted: Callable[[Schedule, Schedule], Outcome] | None = None,
    choice: str | None = None,
) -> MeasuredVerdict:
    """Judge runs of several schedules on the same prompts.

    Args:
        schedules: what was run; whatever lacks a prompt that another one has is named and not judged.
        predicted: what predictions can tell of two schedules, the first one's outcome; without it they tell nothing.
        choice: name of the schedule that the search had chosen, if it is to be named where it was not run.
    """
    runs = Runs.of(schedules)
    pays, plain, drafting = _pays(runs)
    sentences = _Sentences(runs, plain, drafting)
    winner = _winner(runs, predicted)
    headline = sentences.headline(pays)
    said = (
        *sentences.predicted(),
        *sentences.others(),
        *sentences.recommended(winner),
        *sentences.missing(schedules, choice),
    )
    return MeasuredVerdict(
        pays=pays,
        speedup=runs.ratio(drafting, plain) if plain and drafting else None,
        predicted_speedup=plain.predicted_s / drafting.predicted_s if plain and drafting else None,
        winner=winner,
        headline=headline,
        sentences=said,
        claims=tuple(sentences.claims),
        badges=_badges(schedules, runs, winner),
    )


def _pays(runs: Runs) -> tuple[Pays, MeasuredSchedule | None, MeasuredSchedule | None]:
    """The answer, and the plain and the drafting schedule that it is about."""
    plains, draftings = runs.side(plain=True), runs.side(plain=False)
    if not plains or not draftings:
        return "cannot_tell", next(iter(plains), None), next(iter(draftings), None)
    drafting = draftings[0]
    if all(runs.tells_faster(drafting, plain) for plain in plains):
        return "yes", plains[0], drafting
    for plain in plains:
        if all(runs.tells_faster(plain, one) for one in draftings):
            return "no", plain, drafting
    return "cannot_tell", plains[0], drafting


def _winner(runs: Runs, predicted: Callable[[Schedule, Schedule], Outcome] | None = None) -> MeasuredSchedule | None:
    """The simplest of all that nothing tells to be slower; of several of its kind the one measured fastest.

    Slower is what the runs tell to be slower than any other schedule, and what predictions do; but they are not heard
    against the schedule that was measured fastest. Where some of them are told to be faster than plain decoding, only
    these are asked.
    """
    fastest = runs.fastest

    def is_slower(one: MeasuredSchedule) -> bool:
        others = [other for other in runs.finished if other is not one]
        if any(runs.tells_faster(other, one) for other in others):
            return True
        told = predicted if one is not fastest else None
        return told is not None and any(told(other.schedule, one.schedule) == "faster" for other in others)

    contenders = [one for one in runs.finished if not is_slower(one)]
    contenders = [one for one in contenders if _beats_plain(runs, one)] or contenders
    return min(contenders, key=lambda one: (_ORDER.index(kind_of(one.schedule)), runs.total_s(one)), default=None)


def _beats_plain(runs: Runs, one: MeasuredSchedule) -> bool:
    """Whether the runs tell a schedule that drafts to be faster than every plain one."""
    plains = runs.side(plain=True)
    return not one.is_plain and bool(plains) and all(runs.tells_faster(one, plain) for plain in plains)


@dataclass(slots=True)
class _Sentences:
    """Sentences about the runs; every order that one states is kept in `claims`."""

    runs: Runs
    plain: MeasuredSchedule | None
    drafting: MeasuredSchedule | None
    claims: list[Claim] = field(default_factory=list)

    def _claim(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Claim:
        claim = Claim(one=one.name, other=other.name, ratio=self.runs.ratio(one, other))
        self.claims.append(claim)
        return claim

    def headline(self, pays: Pays) -> str:
        plain, drafting = self.plain, self.drafting
        if plain is None or drafting is None:
            lacking = "plain" if plain is None else "drafting"
            return f"{_CANNOT_TELL}: no {lacking} schedule finished them."
        claim = self._claim(drafting, plain)
        measured = (
            f"{in_words(claim.ratio)} the speed of plain decoding, measured on "
            f"{counted(claim.ratio.num_pairs, 'prompt')} ({_quoted(drafting)} next to {_quoted(plain)})"
        )
        if pays == "yes":
            return f"Yes, speculation pays here: {measured}."
        if pays == "no":
            return f"No, speculation does not pay here: it has {measured}."
        return (
            f"Cannot tell from these runs whether speculation pays here: {measured}{self._but(claim, plain, drafting)}."
        )

    def _but(self, claim: Claim, plain: MeasuredSchedule, drafting: MeasuredSchedule) -> str:
        """What keeps two schedules that were told apart from being the answer."""
        if claim.outcome == "faster":
            equals = [one for one in self.runs.side(plain=True) if not self.runs.tells_faster(drafting, one)]
            best = min(equals, key=self.runs.total_s)
            return f", but {in_words(self._claim(drafting, best).ratio)} that of {_quoted(best)}"
        if claim.outcome == "slower":
            equals = [one for one in self.runs.side(plain=False) if not self.runs.tells_faster(plain, one)]
            best = min(equals, key=self.runs.total_s)
            return f", but {_quoted(best)} has {in_words(self._claim(best, plain).ratio)}"
        return ""

    def predicted(self) -> Iterator[str]:
        """What had been predicted of the two in the headline, and what would tell where the runs do not."""
        if self.plain is None or self.drafting is None:
            return
        ratio, predicted = (
            self.runs.ratio(self.drafting, self.plain),
            self.plain.predicted_s / self.drafting.predicted_s,
        )
        if ratio.num_pairs == 1:
            yield f"Predicted for the same two: {factor(predicted)}."
        else:
            place = "within" if ratio.low <= predicted <= ratio.high else "outside"
            yield f"Predicted for the same two: {factor(predicted)}, {place} the measured interval."
        if ratio.outcome == "cannot tell":
            yield more_prompts(ratio)

    def others(self) -> Iterator[str]:
        """The fastest measured of each side, where it is not the one predicted to be."""
        if self.plain is None or self.drafting is None:
            return
        for own, rival in ((self.drafting, self.plain), (self.plain, self.drafting)):
            side = self.runs.side(plain=own.is_plain)
            fastest = min(side, key=self.runs.total_s)
            if fastest is own:
                continue
            over_own, over_rival = self._claim(fastest, own), self._claim(fastest, rival)
            doubt = ", which is not enough to tell them apart" if over_own.outcome == "cannot tell" else ""
            yield (
                f"Of {counted(len(side), 'plain schedule' if own.is_plain else 'drafting schedule')} "
                f"{_quoted(fastest)} was measured fastest: {in_words(over_own.ratio)} the speed of {_quoted(own)}"
                f"{doubt}, and {in_words(over_rival.ratio)} that of {_quoted(rival)}."
            )

    def recommended(self, winner: MeasuredSchedule | None) -> Iterator[str]:
        """Which schedule to use and why, and what the runs cannot tell it from."""
        fastest, runs = self.runs.fastest, counted(len(self.runs.finished), "schedule")
        if winner is None or fastest is None:
            yield "No schedule finished, so none is recommended."
            return
        if len(self.runs.finished) == 1:
            yield f"{_quoted(winner)} is the only schedule that finished."
            return
        if winner is fastest:
            yield f"Recommended is {_quoted(winner)}, measured fastest of {runs}."
        else:
            claim = self._claim(fastest, winner)
            yield (
                f"{_quoted(fastest)} was measured fastest of {runs}, at {in_words(claim.ratio)} the speed of "
                f"{_quoted(winner)}, which is not enough to tell them apart. Recommended is {_quoted(winner)}, of the "
                f"simplest kind that {self._merit(winner)}."
            )
        first = min(self.runs.finished, key=lambda one: one.predicted_s)
        if first not in (winner, fastest):
            claim = self._claim(winner, first)
            yield f"Predicted fastest was {_quoted(first)}; {_quoted(winner)} has {in_words(claim.ratio)} its speed."
        yield from self._ties(winner, but=fastest)
        yield from self._no_answer(winner)

    def _merit(self, winner: MeasuredSchedule) -> str:
        """What every recommended schedule has."""
        if not _beats_plain(self.runs, winner):
            return "nothing tells to be slower"
        for plain in self.runs.side(plain=True):
            self._claim(winner, plain)
        return "was measured faster than plain decoding, beyond the interval"

    def _no_answer(self, winner: MeasuredSchedule) -> Iterator[str]:
        """Why a schedule that beat plain decoding is recommended, and no answer: predictions had not picked it."""
        drafting = self.drafting
        if drafting is None or _beats_plain(self.runs, drafting) or not _beats_plain(self.runs, winner):
            return
        for plain in self.runs.side(plain=True):
            self._claim(winner, plain)
        yield (
            f"That {_quoted(winner)} was measured faster than plain decoding is no answer yet: these very runs picked "
            "it out, and it may owe that to their luck. Other prompts would show."
        )

    def _ties(self, winner: MeasuredSchedule, *, but: MeasuredSchedule) -> Iterator[str]:
        rivals = [one for one in self.runs.finished if one is not winner and one is not but]
        close = [one for one in rivals if self.runs.ratio(winner, one).outcome == "cannot tell"]
        if not close:
            return
        for one in close:
            self._claim(winner, one)
        names = [_quoted(one) for one in close[:_MOST_NAMES]]
        if len(close) > _MOST_NAMES:
            names.append(counted(len(close) - _MOST_NAMES, "other"))
        yield f"The runs cannot tell whether {_quoted(winner)} is faster or slower than {listing(names, 'or')}."

    def missing(self, schedules: Sequence[MeasuredSchedule], choice: str | None) -> Iterator[str]:
        """What is not judged."""
        left_out = [_quoted(one) for one in schedules if one not in self.runs.finished]
        if left_out:
            yield f"Not judged, since a prompt is missing: {listing(left_out)}."
        if choice is not None and choice not in {one.name for one in schedules}:
            yield f'The schedule that the search had chosen, "{choice}", was not run.'


def _badges(
    schedules: Sequence[MeasuredSchedule], runs: Runs, winner: MeasuredSchedule | None
) -> dict[str, tuple[Badge, ...]]:
    first = min(schedules, key=lambda one: one.predicted_s, default=None)
    holders: dict[Badge, MeasuredSchedule | None] = {
        "recommended": winner,
        "predicted fastest": first,
        "measured fastest": runs.fastest,
    }
    return {one.name: tuple(badge for badge, holder in holders.items() if holder is one) for one in schedules}


def _quoted(one: MeasuredSchedule) -> str:
    return f'"{one.name}"'
