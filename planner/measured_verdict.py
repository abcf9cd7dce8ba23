"""The verdict after real runs: what was measured decides, paired by prompt, and the prediction stands next to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from decoding.schedule import Schedule
from planner.kinds import KINDS, kind_of
from planner.measured_runs import MeasuredSchedule, Runs
from planner.paired_ratio import Outcome
from planner.verdict import Badge, Claim, Pays, SpeculationVerdict, times, would_tell
from planner.wording import counted, factor

_ORDER: Final = list(KINDS)
Predicted = Callable[[Schedule, Schedule], Outcome]
"""What predictions can tell of two schedules: the first one's outcome."""


def judge_measured(schedules: Sequence[MeasuredSchedule], *, predicted: Predicted | None = None) -> SpeculationVerdict:
    """Judge runs of several schedules on the same prompts.

    The answer is *yes* if the drafting schedule predicted fastest was faster than every plain one that was run, *no* if
    a plain one was faster than every drafting one; each beyond its interval. Chosen by prediction, the two that are
    compared owe nothing to the luck of the runs; only a *no* is against the plain schedule that it is due to.

    Args:
        schedules: what was run; whatever lacks a prompt that another one has is named and not judged.
        predicted: what predictions can tell of two schedules; without it they tell nothing.
    """
    runs = Runs.of(schedules)
    pays, plain, drafting = _pays(runs)
    winner = _winner(runs, predicted)
    answer = _Judgement(runs, pays, plain, drafting, winner)
    missing = [_quoted(one) for one in schedules if one not in runs.finished]
    return SpeculationVerdict(
        pays=pays,
        claim=None if plain is None or drafting is None else answer.claim(drafting, plain),
        basis=answer.basis,
        world="measured",
        recommended=None if winner is None else winner.name,
        schedule=None if winner is None else winner.schedule,
        why=tuple(answer.why()),
        next_step=tuple(answer.next_step()),
        others=tuple(answer.claim(winner, one) for one in runs.finished if one is not winner) if winner else (),
        facts=(("Measured", tuple(answer.measured())), ("Not judged, since a prompt is missing", tuple(missing))),
        warnings=tuple(answer.warnings()),
        badges=_badges(schedules, runs, winner),
    )


def _pays(runs: Runs) -> tuple[Pays, MeasuredSchedule | None, MeasuredSchedule | None]:
    """Return the answer, and the plain and the drafting schedule that it is about."""
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


def _winner(runs: Runs, predicted: Predicted | None = None) -> MeasuredSchedule | None:
    """Return the simplest of all that nothing tells to be slower; of several of its kind the one measured fastest.

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
    """Return whether the runs tell a schedule that drafts to be faster than every plain one."""
    plains = runs.side(plain=True)
    return not one.is_plain and bool(plains) and all(runs.tells_faster(one, plain) for plain in plains)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What is read from the runs once the answer and the recommended schedule are known."""

    runs: Runs
    pays: Pays
    plain: MeasuredSchedule | None
    drafting: MeasuredSchedule | None
    winner: MeasuredSchedule | None

    def claim(self, one: MeasuredSchedule, other: MeasuredSchedule) -> Claim:
        """Compare two schedules."""
        return Claim(one=one.name, other=other.name, ratio=self.runs.ratio(one, other))

    @property
    def basis(self) -> str:
        """On what, and which two schedules, are compared; or what is missing."""
        if self.plain is None or self.drafting is None:
            return f"no {'plain' if self.plain is None else 'drafting'} schedule finished the runs"
        num_prompts = self.runs.ratio(self.drafting, self.plain).num_pairs
        return f"measured on {counted(num_prompts, 'prompt')} ({_quoted(self.drafting)} next to {_quoted(self.plain)})"

    def why(self) -> Iterator[str]:
        """Set the prediction beside the measured ratio, and name what keeps that ratio from being the answer."""
        if self.plain is None or self.drafting is None:
            return
        ratio, predicted = (
            self.runs.ratio(self.drafting, self.plain),
            self.plain.predicted_s / self.drafting.predicted_s,
        )
        place = "within" if ratio.low <= predicted <= ratio.high else "outside"
        yield f"predicted {factor(predicted)}" + (f", {place} the measured interval" if ratio.num_pairs > 1 else "")
        if self.pays == "cannot_tell" and (best := self._not_beaten(ratio.outcome)) is not None:
            other = self.claim(self.drafting, best) if best.is_plain else self.claim(best, self.plain)
            yield f'"{other.one}" has only {times(other.ratio)} the speed of "{other.other}"'

    def _not_beaten(self, outcome: Outcome) -> MeasuredSchedule | None:
        """Return the best schedule that leaves the answer open, though the two of the headline were told apart."""
        assert self.plain is not None
        assert self.drafting is not None
        if outcome == "faster":
            equals = [one for one in self.runs.side(plain=True) if not self.runs.tells_faster(self.drafting, one)]
        elif outcome == "slower":
            equals = [one for one in self.runs.side(plain=False) if not self.runs.tells_faster(self.plain, one)]
        else:
            return None
        return min(equals, key=self.runs.total_s)

    def next_step(self) -> Iterator[str]:
        """Name what to use, and what would settle an open answer."""
        if self.winner is None:
            yield "run it again: no schedule finished"
            return
        use = "use"
        if self.pays == "cannot_tell" and self.plain is not None and self.drafting is not None:
            ratio = self.runs.ratio(self.drafting, self.plain)
            if ratio.outcome == "cannot tell":
                use = f"{would_tell(ratio)} would tell; until then use"
        merit = "of the simplest kind that nothing tells to be slower"
        if self.winner is self.runs.fastest:
            merit = "measured fastest"
        elif _beats_plain(self.runs, self.winner):
            merit = "of the simplest kind that is faster than plain decoding"
        yield f"{use} {_quoted(self.winner)}: {merit}"

    def measured(self) -> Iterator[str]:
        """Name the extremes of the table."""
        finished, fastest = self.runs.finished, self.runs.fastest
        if fastest is not None:
            yield f"fastest of {counted(len(finished), 'schedule')} {_quoted(fastest)}"
            yield f"predicted fastest {_quoted(min(finished, key=lambda one: one.predicted_s))}"

    def warnings(self) -> Iterator[str]:
        """Warn of a schedule that beat plain decoding although predictions had not picked it."""
        winner, drafting = self.winner, self.drafting
        if winner is None or drafting is None or _beats_plain(self.runs, drafting):
            return
        if _beats_plain(self.runs, winner):
            yield (
                f"{_quoted(winner)} was measured faster than plain decoding, but these very runs picked it out: it may "
                "owe that to luck. Other prompts would show."
            )


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
