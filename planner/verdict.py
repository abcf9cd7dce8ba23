"""The answer in words: does speculation pay here, which kind, how, where, why, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import Literal

from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.kinds import KINDS, Kind, kind_of
from planner.search.comparison import Compare
from planner.search.search import Candidate, SearchResult
from planner.upper_bounds import OverlapBound
from planner.what_if.sensitivity import BreakEven, Sensitivity
from planner.wording import (
    KIND,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanVerdict:
    """What to tell a person.

    Attributes:
        pays: whether speculation beats plain decoding; `unclear` when the predictions cannot tell.
        speedup: best speculation over best plain decoding, as predicted; None if one of them is missing.
        headline: the answer in a sentence.
        prediction: the speeds it stands on.
        choice: kind, settings and lanes.
        because: what the winner's time goes into, and why the runner-up is behind.
        changes: what would have to change for another kind to win.
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
    plain, drafting = result.best(method="autoregressive"), result.best_drafting()
    pays = _pays(plain, drafting, compare)
    return PlanVerdict(
        pays=pays,
        speedup=plain.tpot_s / drafting.tpot_s if plain and drafting else None,
        headline=_headline(pays, plain, drafting),
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


def _headline(pays: str, plain: Candidate | None, drafting: Candidate | None) -> str:
    if drafting is None:
        return "No: only plain decoding can be priced."
    if plain is None:
        return "Unclear: the search left plain decoding out."
    ratio = factor(plain.tpot_s / drafting.tpot_s)
    if pays == "unclear":
        return "No measurable difference: speculation is about as fast as plain decoding here."
    if pays == "yes":
        return f"Yes, speculation pays here: {ratio} the speed of plain decoding."
    return f"No, speculation does not pay here: its best has {ratio} the speed of plain decoding."


def _prediction(plain: Candidate | None, drafting: Candidate | None) -> str:
    best = [one for one in (drafting, plain) if one is not None]
    speeds = [f"{one.schedule.traits.title} {tokens_per_second(one.tpot_s)}" for one in best]
    return f"Predicted: {listing(speeds)}."


def _choice(result: SearchResult, profile: Profile, compare: Compare) -> Iterator[str]:
    winner = result.winner
    yield f"The fastest is {winner.schedule.traits.title}: {_settings(winner.schedule, profile)}."
    yield _where(winner, profile)
    for rival, name in _rivals(result):
        needs = f"{milliseconds(rival.tpot_s)} per token"
        if compare(winner.schedule, rival.schedule).is_measurable:
            yield f"{capital(name)} needs {needs}, {percent(rival.tpot_s / winner.tpot_s - 1)} more."
        else:
            is_simpler = KINDS.index(kind_of(rival.schedule)) < KINDS.index(kind_of(winner.schedule))
            advice = ", which is simpler and so the better choice" if is_simpler else ""
            yield f"There is no measurable difference to {name} ({needs}){advice}."


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


def _settings(schedule: Schedule, profile: Profile) -> str:
    if schedule.traits.window == "none":
        return "one target pass per token"
    if schedule.is_tree:
        return _tree_settings(schedule)
    features = ", reading the target's exit features" if schedule.exit_features else ""
    drafted = f"draft {counted(schedule.num_speculative_tokens, 'token')} per round{features}"
    if schedule.traits.has_draft_model and not schedule.traits.overlaps:
        return drafted
    exit_taken = (
        f", take the exit after layer {schedule.exit_layer} of {profile.num_layers}" if schedule.uses_exit else ""
    )
    return f"{drafted}{exit_taken}, prepare {_branches(schedule)}"


def _tree_settings(schedule: Schedule) -> str:
    by = "the target's own streams draft" if schedule.draft_lane is None else f"{schedule.drafter} drafts"
    expanded = f", {schedule.tree_top_k} nodes expanded per level" if schedule.tree_top_k else ""
    depth = f"{schedule.num_speculative_tokens} deep{expanded}"
    return f"{by} a tree of {counted(schedule.tree_size, 'token')} per round, {depth}"


def _branches(schedule: Schedule) -> str:
    if schedule.roots_per_row is not None:
        rows = " / ".join(str(count) for count in schedule.roots_per_row)
        return f"{rows} branches for 0 / 1 / 2 .. accepted tokens, from the {schedule.root_source}"
    sources = [(schedule.exit_top_k, "exit"), (schedule.draft_top_k, "draft")]
    return listing(
        [f"{counted(count, 'branch', 'branches')} per row from the {name}" for count, name in sources if count]
    )


def _where(candidate: Candidate, profile: Profile) -> str:
    schedule = candidate.schedule
    target = _lane(profile, schedule.target_lane)
    if schedule.draft_lane is None:
        return f"The target runs on {target}."
    if schedule.is_pooled and schedule.is_tree:
        return f"The target and its head take turns on {target}."
    if schedule.is_pooled:
        return f"Target and draft take turns on {target}."
    return f"The target runs on {target}, the draft on {_lane(profile, schedule.draft_lane)}."


def _lane(profile: Profile, name: str) -> str:
    lane = profile.lane(name)
    if not lane.cores:
        return f"lane {name} ({lane.device})"
    cores = f"core {lane.cores[0]}" if len(lane.cores) == 1 else f"{len(lane.cores)} cores"
    return f"lane {name} ({lane.device}, {cores})"


def _because(result: SearchResult, compare: Compare) -> Iterator[str]:
    winner = result.winner
    yield _breakdown(winner)
    prediction = winner.prediction
    drafted_s = prediction.hidden_draft_s + prediction.exposed_draft_s
    if winner.schedule.traits.overlaps and drafted_s and not isnan(prediction.reuse_rate):
        yield (
            f"{percent(prediction.reuse_rate)} of the rounds find their next window ready, and "
            f"{percent(prediction.hidden_draft_s / drafted_s)} of the draft's work is hidden behind the target."
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
    return f"What bounds it, of {milliseconds(candidate.tpot_s)} per token: {listing(shares)}."


def per_token(candidate: Candidate) -> dict[str, float]:
    """Predicted seconds per committed token by part; together the time per token."""
    attribution = candidate.prediction.bottlenecks._asdict()
    total_s = sum(attribution.values())
    return {name: time_s / total_s * candidate.tpot_s for name, time_s in attribution.items()}


def _difference(winner: Candidate, rival: Candidate) -> str:
    """What the rival spends more on and saves, per token."""
    ours, theirs = _grouped(winner), _grouped(rival)
    changes = sorted(((name, theirs[name] - ours[name]) for name in ours), key=lambda change: -abs(change[1]))
    large = [change for change in changes if abs(change[1]) >= WORTH_A_WORD * winner.tpot_s] or changes[:1]
    more = [f"{milliseconds(change)} more on {name}" for name, change in large if change > 0]
    less = [f"{milliseconds(-change)} less on {name}" for name, change in large if change <= 0]
    name = schedule_name(rival.schedule, rival.placement)
    return f"{capital(rival.schedule.traits.title)} ({name}) spends per token {listing(more + less)}."


def _grouped(candidate: Candidate) -> dict[str, float]:
    """`per_token` in coarser groups that all kinds share."""
    groups = {
        "the target": ("target_verify", "target_prefix", "target_suffix"),
        "drafting in the open": ("draft", "fallback"),
        "lanes slowing each other": ("contention",),
        "channel, dispatch and driver": ("channel", "overhead"),
    }
    parts = per_token(candidate)
    return {group: sum(parts.get(name, 0.0) for name in names) for group, names in groups.items()}


def _changes(sensitivity: Sensitivity, bound: OverlapBound | None) -> Iterator[str]:
    for challenger in dict.fromkeys(one.challenger for one in sensitivity.break_evens):
        yield _change(challenger, [one for one in sensitivity.break_evens if one.challenger == challenger])
    gains = [f"the {gain.part} {percent(gain.gain)}" for gain in sensitivity.gains]
    if gains:
        yield f"Ten percent more speed of one part would bring, in tokens per second: {listing(gains)}."
    if bound is not None:
        limit = factor(bound.over_synchronous)
        yield f"On these lanes mirror can be at most {limit} as fast as drafting and verifying in turn."
        if bound.memory_floor_s is not None:
            floor = milliseconds(bound.memory_floor_s)
            yield f"The shared memory alone needs {floor} per token of mirror speculation."


def _change(challenger: Kind, asked: list[BreakEven]) -> str:
    ties = [_tie(one) for one in asked if one.at is not None]
    if ties:
        return f"{capital(KIND[challenger])} would win if {', or if '.join(ties)}."
    tried = " nor with ".join(_range(one) for one in asked)
    return f"{capital(KIND[challenger])} would win neither with {tried}."


def _tie(one: BreakEven) -> str:
    assert one.at is not None
    if one.quantity == "acceptance":
        direction = "rose" if one.at > one.now else "fell"
        return f"the draft's acceptance per token {direction} from {percent(one.now)} to {percent(one.at)}"
    return f"the draft were {factor(max(one.at, 1 / one.at))} {'faster' if one.at > 1 else 'slower'}"


def _range(one: BreakEven) -> str:
    if one.quantity == "acceptance":
        return f"an acceptance per token from {percent(one.low)} to {percent(one.high)}"
    return f"a draft from {factor(1 / one.low)} slower to {factor(one.high)} faster"
