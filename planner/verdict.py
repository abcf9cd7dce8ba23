"""The answer to "does speculation pay here?" as data, and the sentences that are printed from it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any, Final, Literal

from decoding.schedule import Schedule
from planner.paired_ratio import MOST_PAIRS, Outcome, Ratio, pairs_needed
from planner.wording import counted, factor

Pays = Literal["yes", "no", "cannot_tell"]
Badge = Literal["recommended", "predicted fastest on all prompts", "measured fastest on the same prompts"]

PAYS: Final[Mapping[Outcome, Pays]] = {"faster": "yes", "slower": "no", "cannot tell": "cannot_tell"}
"""The answer that follows from comparing the best drafting with the best plain schedule."""
_ANSWER: Final[Mapping[Pays, str]] = {
    "yes": "Yes, speculation pays here",
    "no": "No, speculation does not pay here",
    "cannot_tell": "Cannot tell whether speculation pays here",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """How two schedules compare: their names in the table, and the time of `other` over that of `one`."""

    one: str
    other: str
    ratio: Ratio
    schedules: tuple[Schedule, Schedule] | None = None

    @property
    def outcome(self) -> Outcome:
        """Whether `one` is faster or slower, beyond the ratio's interval."""
        return self.ratio.outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationVerdict:
    """Whether speculation pays, what to use, and why.

    Attributes:
        claim: the best drafting schedule against the plain one that it has to beat; None if either is missing.
        basis: how the two were compared, or what is missing.
        recommended, schedule: name in the table of the schedule to use, and that schedule; None if there is none.
        why, next_step: what explains the answer, and what to do now.
        others: the recommended schedule against each other row of the table.
        by_length: the ratio of `claim` for answers cut after so many tokens.
        facts: further facts by label.
        slow_facts: returns further facts; it takes seconds, so it is called only when they are shown.
        warnings: sentences that must be shown with the answer.
        badges: what each schedule is best at, by its name in the table.
        can_be_run: whether real runs could check the prediction: `mirrorsd validate` compares greedy decoding only.

    Raises:
        ValueError: `pays` contradicts the ratio of `claim`, or the recommended schedule.
    """

    pays: Pays
    claim: Claim | None
    basis: str
    world: Literal["measured", "predicted"] = "predicted"
    recommended: str | None = None
    schedule: Schedule | None = None
    why: Sequence[str] = ()
    next_step: Sequence[str] = ()
    others: Sequence[Claim] = ()
    by_length: Mapping[int, Ratio] = field(default_factory=dict)
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    slow_facts: Callable[[], Mapping[str, Sequence[str]]] = dict
    warnings: tuple[str, ...] = ()
    badges: Mapping[str, tuple[Badge, ...]] = field(default_factory=dict)
    can_be_run: bool = True

    def __repr__(self) -> str:
        """Return one line: all facts would fill pages."""
        return f"<SpeculationVerdict: {self.headline}>"

    def __post_init__(self) -> None:
        """Refuse an answer that contradicts the ratio, and a *yes* without a ratio."""
        implied = "no" if self.claim is None else PAYS[self.claim.outcome]
        if self.pays not in ("cannot_tell", implied):
            ratio = None if self.claim is None else times(self.claim.ratio)
            raise ValueError(f"{self.pays} contradicts a ratio of {ratio}")
        drafts = None if self.schedule is None else self.schedule.traits.window != "none"
        if (self.pays, drafts) in (("no", True), ("yes", False)):
            raise ValueError(
                f"{self.pays} contradicts a recommended schedule that {'drafts' if drafts else 'does not'}"
            )

    @property
    def speedup(self) -> Ratio | None:
        """Speed of the drafting schedule over that of the plain one."""
        return None if self.claim is None else self.claim.ratio

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        found = "" if self.claim is None else f"{times(self.claim.ratio)} the speed of plain decoding, "
        length = f", for answers of up to {max(self.by_length):,} tokens" if self.by_length else ""
        return f"{_ANSWER[self.pays]}: {found}{self.basis}{length}."

    @property
    def turns_at(self) -> int | None:
        """The answer length from which on the outcome is that of the longest answers: faster, or slower.

        None if all lengths have that outcome, or if it is "cannot tell".
        """
        lengths = sorted(self.by_length)
        outcomes = [self.by_length[length].outcome for length in lengths]
        differing = [place for place, outcome in enumerate(outcomes) if outcome != outcomes[-1]]
        return lengths[differing[-1] + 1] if differing and outcomes[-1] != "cannot tell" else None

    @property
    def lines(self) -> tuple[str, ...]:
        """The answer, why, and what to do next."""
        return (self.headline, *fact("Why", (*self.why, *self._lengths)), *fact("Next", self.next_step))

    @property
    def _lengths(self) -> Iterator[str]:
        if len(self.by_length) > 1:
            shortest = min(self.by_length)
            yield f"{factor(self.by_length[shortest].value)} for answers of {shortest:,} tokens"
        if self.turns_at is not None:
            side = "ahead" if self.by_length[max(self.by_length)].value > 1 else "behind"
            yield f"speculation is known to be {side} from about {self.turns_at:,} tokens on"

    @property
    def explained(self) -> tuple[str, ...]:
        """Lines with further explanation of the answer."""
        lengths = [f"{length:,} tokens {times(ratio)}" for length, ratio in sorted(self.by_length.items())]
        facts = {
            f'Speed of "{self.recommended}" over that of': rivals(self.others, can_be_run=self.can_be_run),
            "By length of answers": lengths,
            **self.facts,
            **self.slow_facts(),
        }
        return tuple(line for label, items in facts.items() for line in fact(label, items))

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join((*self.lines, *self.warnings, *self.explained))

    @property
    def entry(self) -> dict[str, Any]:
        """The same lines as a JSON object, for scripts."""
        return {"verdict": "\n".join(self.lines), "warnings": list(self.warnings), "explanation": list(self.explained)}


def fact(label: str, items: Iterable[str]) -> Iterator[str]:
    """Return `Label: one; another.`, or nothing without items."""
    if found := "; ".join(item.rstrip(".") for item in items):
        yield f"{label}: {found}."


def rivals(claims: Sequence[Claim], *, can_be_run: bool = True) -> list[str]:
    """Return each claim's other schedule with the ratio, and where that cannot tell, what would decide."""
    doubts = [f", {would_decide(one.ratio, can_be_run=can_be_run)}" * (one.outcome == "cannot tell") for one in claims]
    return [f'"{one.other}" {times(one.ratio)}{doubt}' for one, doubt in zip(claims, doubts, strict=True)]


def would_decide(ratio: Ratio, *, can_be_run: bool = True) -> str:
    """Return what would decide which of two schedules is faster; `can_be_run` as in `SpeculationVerdict`."""
    needed = pairs_needed(ratio)
    if needed is not None:
        return f"about {counted(needed, 'prompt')} like these would decide"
    if ratio.num_pairs == 1:
        return "more than one prompt would decide"
    if not ratio.machine_error:
        return f"not even {MOST_PAIRS:,} prompts would decide"
    return f"{'runs of both on more prompts' if can_be_run else 'a profile with narrower intervals'} would decide"


def times(ratio: Ratio) -> str:
    """Return a ratio in words, with its interval: `1.33× (1.21× to 1.46×)`; one prompt has no interval."""
    if isinf(ratio.high):
        return factor(ratio.value)
    return f"{factor(ratio.value)} ({factor(ratio.low)} to {factor(ratio.high)})"
