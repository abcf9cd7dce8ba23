"""The answer in words: does speculation pay here, which kind, how, where, why, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final, Literal

from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.kinds import KINDS, Kind, kind_of
from planner.search.comparison import Compare
from planner.search.search import Candidate, SearchResult
from planner.upper_bounds import OverlapBound
from planner.what_if.sensitivity import Sensitivity, Sweep
from planner.wording import (
    PART,
    capital,
    counted,
    factor,
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
class PlanVerdict:
    """The answer, in sentences for a person.

    Attributes:
        pays: whether speculation beats plain decoding; `unclear` when the predictions cannot tell.
        speedup: best speculation over best plain decoding, as predicted; None if one of them is missing.
        headline: the answer in a sentence.
        prediction: the predicted speeds.
        choice: kind, settings and lanes, and how the other kinds compare.
        because: what the winner's time goes into, and what slower kinds spend more on.
        changes: what would have to change for another kind to be the fastest.
    """

    pays: Literal["yes", "no", "unclear"]
    speedup: float | None
    headline: str
    prediction: str
    choice: tuple[str, ...]
    because: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it, a paragraph each."""
        return "\n\n".join(
            " ".join(part)
            for part in ((self.headline, self.prediction), self.choice, self.because, self.changes)
            if part
        )


def judge(
    result: SearchResult,
    profile: Profile,
    compare: Compare,
    sensitivity: Sensitivity,
    bound: OverlapBound | None = None,
) -> PlanVerdict:
    """Put a search into words; `bound` is that of the best mirror schedule."""
    plain, drafting = result.best(kind="plain"), result.best_drafting()
    pays = _pays(plain, drafting, compare)
    return PlanVerdict(
        pays=pays,
        speedup=plain.tpot_s / drafting.tpot_s if plain and drafting else None,
        headline=_headline(plain, drafting, compare),
        prediction=_prediction(plain, drafting),
        choice=tuple(_choice(result, profile, compare)),
        because=tuple(_because(result, compare)),
        changes=tuple(_changes(sensitivity, bound)),
    )


def _pays(plain: Candidate | None, drafting: Candidate | None, compare: Compare) -> Literal["yes", "no", "unclear"]:
    if drafting is None:
        return "no"
    if plain is None or not compare(plain.schedule, drafting.schedule).is_measurable:
        return "unclear"
    return "yes" if drafting.tpot_s < plain.tpot_s else "no"


def _headline(plain: Candidate | None, drafting: Candidate | None, compare: Compare) -> str:
    if drafting is None:
        return "No: only plain decoding can be predicted from this profile and record."
    if plain is None:
        return "Cannot tell: the search left plain decoding out."
    ratio, comparison = factor(plain.tpot_s / drafting.tpot_s), compare(plain.schedule, drafting.schedule)
    if not comparison.is_measurable:
        error = percent(comparison.high / comparison.ratio - 1)
        return f"Cannot tell: speculation is predicted at {ratio} the speed of plain decoding, give or take {error}."
    if drafting.tpot_s < plain.tpot_s:
        return f"Yes, speculation pays here: {ratio} the speed of plain decoding."
    return f"No, speculation does not pay here: its best has {ratio} the speed of plain decoding."


def _prediction(plain: Candidate | None, drafting: Candidate | None) -> str:
    best = [one for one in (drafting, plain) if one is not None]
    speeds = [f"{one.schedule.traits.title} {tokens_per_second(one.tpot_s)}" for one in best]
    return f"Predicted: {listing(speeds)}."


def _choice(result: SearchResult, profile: Profile, compare: Compare) -> Iterator[str]:
    winner = result.winner
    settings = _settings(winner.schedule, profile)
    yield f"The fastest by prediction is {winner.schedule.traits.title}: {settings}."
    yield _lanes(winner.schedule, profile)
    close = []
    for rival, name in _rivals(result):
        if compare(winner.schedule, rival.schedule).is_measurable:
            more = percent(rival.tpot_s / winner.tpot_s - 1)
            yield f"{capital(name)} needs {milliseconds(rival.tpot_s)} per token, {more} more."
        else:
            close.append((rival, name))
    if close:
        yield from _too_close(winner, close)


def _settings(schedule: Schedule, profile: Profile) -> str:
    """What a round does, such as `draft 2 tokens per round`."""
    if schedule.traits.window == "none":
        return "one target pass per token"
    if schedule.is_tree:
        return _tree_settings(schedule)
    if schedule.traits.finds_text:
        return f"verify up to {counted(schedule.num_speculative_tokens, 'token')} that followed the last ones before"
    features = ", reading the target's exit features" if schedule.exit_features else ""
    drafted = f"draft {counted(schedule.num_speculative_tokens, 'token')} per round{features}"
    if not schedule.traits.overlaps:
        return drafted
    exit_taken = f", exit after layer {schedule.exit_layer} of {profile.num_layers}" if schedule.uses_exit else ""
    return f"{drafted}{exit_taken}, prepare {_branches(schedule)}"


def _lanes(schedule: Schedule, profile: Profile) -> str:
    """A sentence on which model runs where."""
    target = _lane(profile, schedule.target_lane)
    if schedule.draft_lane is None or (schedule.is_pooled and schedule.traits.finds_text):
        return f"The target runs on {target}."
    if schedule.is_pooled and schedule.is_tree:
        return f"The target and its head take turns on {target}."
    if schedule.is_pooled:
        return f"Target and draft take turns on {target}."
    return f"The target runs on {target}, the draft on {_lane(profile, schedule.draft_lane)}."


def _tree_settings(schedule: Schedule) -> str:
    by = "the target's own streams draft" if schedule.draft_lane is None else f"{schedule.drafter} drafts"
    expanded = f", {schedule.tree_top_k} nodes expanded per level" if schedule.tree_top_k else ""
    depth = f"{schedule.num_speculative_tokens} deep{expanded}"
    return f"{by} a tree of {counted(schedule.tree_size, 'token')} per round, {depth}"


def _branches(schedule: Schedule) -> str:
    if schedule.roots_per_row is not None:
        branches = " / ".join(str(count) for count in schedule.roots_per_row)
        accepted = " / ".join(str(count) for count in range(len(schedule.roots_per_row)))
        return f"{branches} branches for {accepted} accepted tokens, from the {schedule.root_source}"
    sources = [(schedule.exit_top_k, "exit"), (schedule.draft_top_k, "draft")]
    return listing(
        [f"{counted(count, 'branch', 'branches')} per row from the {name}" for count, name in sources if count]
    )


def _lane(profile: Profile, name: str) -> str:
    lane = profile.lane(name)
    if not lane.cores:
        return f"lane {name} ({lane.device})"
    cores = f"core {lane.cores[0]}" if len(lane.cores) == 1 else f"{len(lane.cores)} cores"
    return f"lane {name} ({lane.device}, {cores})"


def _too_close(winner: Candidate, close: list[tuple[Candidate, str]]) -> Iterator[str]:
    """What the predictions cannot tell from the winner, and whether that is a reason to choose something simpler."""
    rivals = [f"{name} ({milliseconds(rival.tpot_s)} per token)" for rival, name in close]
    yield f"The predictions cannot tell whether it is really faster than {listing(rivals, 'or')}."
    order = list(KINDS)
    simplest, name = min(close, key=lambda one: order.index(kind_of(one[0].schedule)))
    if order.index(kind_of(simplest.schedule)) < order.index(kind_of(winner.schedule)):
        yield f"{capital(name)} is simpler, and so the better choice unless runs show a difference."


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


def _because(result: SearchResult, compare: Compare) -> Iterator[str]:
    winner = result.winner
    drafting = [one.prediction for one in result.candidates if one.schedule.traits.window != "none"]
    if drafting and not any(one.num_accepted_tokens for one in drafting):
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
        if is_other_kind and compare(winner.schedule, rival.schedule).is_measurable:
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


def _changes(sensitivity: Sensitivity, bound: OverlapBound | None) -> Iterator[str]:
    for challenger in dict.fromkeys(kind for sweep in sensitivity.sweeps for kind in sweep.ties):
        yield _change(challenger, sensitivity.sweeps)
    gains = [f"the {part} {percent(gain)}" for part, gain in sensitivity.gains.items()]
    if gains:
        yield f"One part made ten percent faster would bring this many more tokens per second: {listing(gains)}."
    if bound is not None:
        limit = factor(bound.over_synchronous)
        yield (
            "On the lanes of its best schedule, mirror speculation can be at most "
            f"{limit} as fast as drafting and verifying in turn."
        )
        if bound.memory_floor_s is not None:
            floor = milliseconds(bound.memory_floor_s)
            yield f"The shared memory alone needs {floor} per token of mirror speculation."


def _change(challenger: Kind, sweeps: Sequence[Sweep]) -> str:
    ties = [_tie(sweep, at) for sweep in sweeps if (at := sweep.ties[challenger]) is not None]
    if ties:
        return f"{capital(KINDS[challenger])} would be the fastest if {', or if '.join(ties)}."
    tried = ", nor with one ".join(_range(sweep) for sweep in sweeps)
    return f"{capital(KINDS[challenger])} would not be the fastest with a draft {tried}."


def _tie(sweep: Sweep, at: float) -> str:
    if sweep.quantity == "acceptance":
        often = "more often" if at > sweep.now else "less often"
        return f"the draft were right {often} (for {percent(at)} of the tokens, not {percent(sweep.now)})"
    return f"drafting were {factor(max(at, 1 / at))} {'faster' if at > 1 else 'slower'}"


def _range(sweep: Sweep) -> str:
    low, high = sweep.values[0], sweep.values[-1]
    if sweep.quantity == "acceptance":
        return f"that is right for {percent(low)} to {percent(high)} of the tokens"
    return f"from {factor(1 / low)} slower to {factor(high)} faster"
