"""The answer in words: does speculation pay here, which kind, how, where, why, and what would change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isnan
from typing import Final

from hwprofiles.profile import Profile
from planner.claim import Claim, in_words
from planner.kinds import KINDS, Kind, kind_of
from planner.measured_verdict import PAYS, Pays
from planner.paired_ratio import Ratio, pairs_needed
from planner.search.comparison import Compare
from planner.search.search import Candidate, SearchResult
from planner.settings_in_words import lanes, settings
from planner.short_answers import short_answers
from planner.wording import (
    PART,
    capital,
    counted,
    listing,
    milliseconds,
    percent,
    schedule_name,
    tokens_per_second,
)

WORTH_A_WORD = 0.02
"""Smallest share of a time that a sentence spends words on."""
_TARGET_PARTS: Final = ("target_verify", "target_prefix", "target_suffix")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What a verdict is about.

    Attributes:
        result: the schedules in the order in which they would be chosen, with predictions over the prompts to judge on.
        num_prompts: how many these are.
        is_held_out: whether nothing was fitted to them or chosen on them.
        is_ever_right: whether any schedule that was searched gets a drafted token accepted, on any prompt.
    """

    result: SearchResult
    num_prompts: int
    is_held_out: bool
    is_ever_right: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanVerdict:
    """The answer, in sentences for a person. Speeds and ratios are those on the prompts to judge on.

    Attributes:
        pays: whether speculation beats plain decoding, as far as predictions can tell.
        speedup: speed of the drafting schedule that was chosen over that of the plain one that was; None if one of them
            is missing.
        lead: the winner next to the fastest of the other kinds and the other placement; None without another.
        headline: the answer in a sentence.
        prediction: the predicted speeds, and which prompts they are over.
        choice: kind, settings and lanes, and how the other kinds compare.
        because: what the winner's time goes into, and what slower kinds spend more on.
        changes: what would have to change for another kind to be the fastest.
        claims: what is said of the order of two schedules.
    """

    pays: Pays
    speedup: Ratio | None
    lead: Claim | None
    headline: str
    prediction: str
    choice: tuple[str, ...]
    because: tuple[str, ...]
    changes: tuple[str, ...]
    claims: tuple[Claim, ...] = ()

    @property
    def text(self) -> str:
        """All of it, a paragraph each."""
        return "\n\n".join(
            " ".join(part)
            for part in ((self.headline, self.prediction), self.choice, self.because, self.changes)
            if part
        )


def judge(judged: Judged, profile: Profile, compare: Compare, changes: Iterable[str] = ()) -> PlanVerdict:
    """Put a search into words; `changes` are the sentences on what would change it, see `planner.changes_in_words`."""
    result = judged.result
    plain, drafting = result.best(kind="plain"), result.best_drafting()
    ratios = _Ratios(compare)
    speedup = ratios.claim(drafting, plain).ratio if plain and drafting else None
    leads = [ratios.claim(result.winner, rival) for rival, _ in _rivals(result)]
    return PlanVerdict(
        pays=_pays(speedup, drafting),
        speedup=speedup,
        lead=min(leads, key=lambda claim: claim.ratio.value, default=None),
        headline=_headline(speedup, drafting),
        prediction=_prediction(plain, drafting, judged),
        choice=tuple(_choice(judged, profile, ratios)),
        because=tuple(_because(judged, ratios)),
        changes=tuple(changes),
        claims=tuple(ratios.claims),
    )


def told_slower(result: SearchResult, compare: Compare) -> tuple[Kind, ...]:
    """The kinds whose best is told to be slower than the winner: it has no lead over the others that could be lost."""
    best = {kind: result.best(kind=kind) for kind in KINDS}
    return tuple(
        kind
        for kind, rival in best.items()
        if rival is not None and compare(result.winner.schedule, rival.schedule).outcome == "faster"
    )


@dataclass(slots=True)
class _Ratios:
    """Ratios of predictions; those that a sentence states are kept in `claims`."""

    compare: Compare
    claims: list[Claim] = field(default_factory=list)

    def of(self, one: Candidate, other: Candidate) -> Ratio:
        return self.compare(one.schedule, other.schedule)

    def claim(self, one: Candidate, other: Candidate) -> Claim:
        names = (schedule_name(candidate.schedule, candidate.placement) for candidate in (one, other))
        claim = Claim(one=next(names), other=next(names), ratio=self.of(one, other))
        self.claims.append(claim)
        return claim


def _pays(speedup: Ratio | None, drafting: Candidate | None) -> Pays:
    if drafting is None:
        return "no"
    return "cannot_tell" if speedup is None else PAYS[speedup.outcome]


def _headline(speedup: Ratio | None, drafting: Candidate | None) -> str:
    if drafting is None:
        return "No: only plain decoding can be predicted from this profile and record."
    if speedup is None:
        return "Cannot tell: the search left plain decoding out."
    ratio = f"{in_words(speedup)} the speed of plain decoding"
    if speedup.outcome == "faster":
        return f"Yes, speculation pays here: {ratio}."
    if speedup.outcome == "slower":
        return f"No, speculation does not pay here: its best has {ratio}."
    return f"Cannot tell from predictions whether speculation pays here: {ratio}. {_what_would_tell(speedup)}"


def _what_would_tell(ratio: Ratio) -> str:
    needed = pairs_needed(ratio)
    if needed is not None:
        return f"About {counted(needed, 'prompt')} like these would tell."
    return "More prompts would not tell, as the machine is not known so well; running both would."


def _prediction(plain: Candidate | None, drafting: Candidate | None, judged: Judged) -> str:
    best = [one for one in (drafting, plain) if one is not None]
    speeds = [f"{one.schedule.traits.title} {tokens_per_second(one.tpot_s)}" for one in best]
    prompts = counted(judged.num_prompts, "prompt")
    if judged.is_held_out:
        return f"Predicted: {listing(speeds)}, on {prompts} that nothing was fitted to or chosen on."
    return f"Predicted: {listing(speeds)}, on the {prompts} that they were chosen on: too few to keep some apart."


def _choice(judged: Judged, profile: Profile, ratios: _Ratios) -> Iterator[str]:
    winner = judged.result.winner
    yield f"Chosen by prediction is {winner.schedule.traits.title}: {settings(winner.schedule, profile)}."
    yield lanes(winner.schedule, profile)
    close: list[tuple[Candidate, str]] = []
    slower: list[Kind] = []
    for rival, name in _rivals(judged.result):
        outcome = ratios.of(winner, rival).outcome
        if outcome == "cannot tell":
            close.append((rival, name))
        else:
            more = rival.tpot_s / winner.tpot_s - 1
            share = f"{percent(abs(more))} {'more' if outcome == 'faster' else 'less'}"
            slower += [kind_of(rival.schedule)] if outcome == "faster" else []
            yield f"{capital(name)} needs {milliseconds(rival.tpot_s)} per token, {share}."
    if close:
        rivals = [f"{name} ({milliseconds(rival.tpot_s)} per token)" for rival, name in close]
        yield f"The predictions cannot tell whether it is faster or slower than {listing(rivals, 'or')}."
        yield _what_would_tell_them([(ratios.of(winner, rival), name) for rival, name in close])
    yield from short_answers(judged.result, slower)


def _what_would_tell_them(close: list[tuple[Ratio, str]]) -> str:
    """How many prompts would tell the winner from each, or that only runs would."""
    needed = [(pairs_needed(ratio), name) for ratio, name in close]
    ways = [f"about {counted(count, 'prompt')} like these for {name}" for count, name in needed if count is not None]
    only_runs = [name for count, name in needed if count is None]
    if only_runs:
        ways.append(f"runs, not more prompts, for {listing(only_runs)}")
    return f"What would tell: {listing(ways)}."


def _rivals(result: SearchResult) -> Iterator[tuple[Candidate, str]]:
    """The best of the winner's method in the other placement, and of every other kind."""
    winner = result.winner
    other_placement = result.best(
        method=winner.schedule.method, placement="pooled" if winner.placement == "split" else "split"
    )
    if other_placement is not None:
        yield other_placement, f"{winner.schedule.traits.title} {other_placement.placement}"
    for kind in KINDS:
        rival = result.best(kind=kind)
        if kind != kind_of(winner.schedule) and rival is not None:
            yield rival, rival.schedule.traits.title


def _because(judged: Judged, ratios: _Ratios) -> Iterator[str]:
    result, winner = judged.result, judged.result.winner
    if result.best_drafting() is not None and not judged.is_ever_right:
        yield "No drafted token was right on these prompts, so drafting only costs time."
    yield _breakdown(winner)
    prediction = winner.prediction
    drafted_s = prediction.hidden_draft_s + prediction.exposed_draft_s
    if winner.schedule.traits.overlaps and drafted_s and not isnan(prediction.reuse_rate):
        yield (
            f"{percent(prediction.reuse_rate)} of the rounds find their next window ready, and "
            f"{percent(prediction.hidden_draft_s / drafted_s)} of the draft's work is done while the target works."
        )
    for rival, _ in _rivals(result):
        is_other_kind = kind_of(rival.schedule) != kind_of(winner.schedule)
        if is_other_kind and ratios.of(winner, rival).outcome == "faster":
            yield _difference(winner, rival)


def _breakdown(candidate: Candidate) -> str:
    """Where the time goes, the largest part first."""
    parts = sorted(per_token(candidate).items(), key=lambda part: -part[1])
    total_s = sum(time_s for _, time_s in parts)
    shares = [
        f"{PART[name]} ({percent(time_s / total_s)})" for name, time_s in parts if time_s >= WORTH_A_WORD * total_s
    ]
    return f"Its {milliseconds(candidate.tpot_s)} per token go into {listing(shares)}."


def per_token(candidate: Candidate) -> dict[str, float]:
    """Predicted seconds per committed token by part, none negative; together the time per token.

    Where both lanes were measured faster together than alone, what they gain is taken off the target's parts.
    """
    parts = candidate.prediction.bottlenecks._asdict()
    scale = candidate.tpot_s / sum(parts.values())
    target_s = sum(parts[name] for name in _TARGET_PARTS)
    faster = 1 + min(0.0, parts["contention"]) / target_s if target_s else 1.0
    parts |= {name: parts[name] * faster for name in _TARGET_PARTS} | {"contention": max(0.0, parts["contention"])}
    return {name: time_s * scale for name, time_s in parts.items()}


def _difference(winner: Candidate, rival: Candidate) -> str:
    """What the rival spends more on and saves, per token."""
    ours, theirs = _grouped(winner), _grouped(rival)
    changes = sorted(((name, theirs[name] - ours[name]) for name in ours), key=lambda change: -abs(change[1]))
    large = [change for change in changes if abs(change[1]) >= WORTH_A_WORD * winner.tpot_s] or changes[:1]
    more = [f"{milliseconds(change)} more on {name}" for name, change in large if change > 0]
    less = [f"{milliseconds(-change)} less on {name}" for name, change in large if change <= 0]
    name = schedule_name(rival.schedule, rival.placement)
    return f"Per token, {rival.schedule.traits.title} ({name}) spends {listing(more + less)}."


def _grouped(candidate: Candidate) -> dict[str, float]:
    """`per_token` in coarser groups that all kinds share."""
    groups = {
        "the target": _TARGET_PARTS,
        "waiting for the draft": ("draft", "fallback"),
        "lanes slowing each other": ("contention",),
        "messages and dispatch": ("channel", "overhead"),
    }
    parts = per_token(candidate)
    return {group: sum(parts.get(name, 0.0) for name in names) for group, names in groups.items()}
