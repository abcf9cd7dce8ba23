"""The answer in words: whether to speculate, where to put the draft, what it could bring, and what it all rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Final

from hwprofiles.model_shape import WeightFormat
from hwprofiles.platform import SECOND_STREAM
from planner.claim import in_words
from planner.one_tokenizer import is_taken_for_granted
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.settings_in_words import settings
from planner.wording import (
    capital,
    counted,
    factor,
    listing,
    milliseconds,
    percent,
    schedule_name,
    schedule_names,
    tokens_per_second,
)
from sim.derived.assumption import Status

_MOST_SHAKY: Final = 5
UNTRAINED: Final = " (exit to be trained)"
_KNOWN: Final[Mapping[Status, str]] = {
    "measured": "measured",
    "datasheet": "from data sheets",
    "derived": "derived from others",
    "guessed": "guessed",
}
_AS_WIDE: Final[Mapping[WeightFormat, str]] = {"bf16": "fp16"}
_SLOWER: Final = {"faster": "is faster", "slower": "is slower", "cannot tell": "may be faster or slower"}


def advice(plan: PlatformPlan) -> Iterator[str]:
    """Paragraphs, the answer first."""
    yield headline(plan)
    yield " ".join(_what_to_do(plan))
    yield " ".join([*_other_places(plan), *_limits(plan)])
    yield " ".join([*_acceptance(plan), *_costs(plan)])
    yield " ".join(_trust(plan))


def what_if(changed: PlatformPlan, before: PlatformPlan, changes: Sequence[str]) -> str:
    """What some changes of a platform's numbers bring, such as `npu.memory_efficiency=0.5`."""
    what = f"What if {listing(list(changes))}"
    plans = changed, before
    if len({tuple((one.pair, one.schedule, one.tpot_s) for one in plan.ranking) for plan in plans}) == 1:
        return f"{what}: no schedule is predicted to be any faster or slower."
    told = [f"plain decoding takes {_instead(changed.plain, before.plain)}"]
    if changed.drafting is not None and before.drafting is not None:
        told.append(f"the best speculation takes {_instead(changed.drafting, before.drafting)}")
    now, then = (_best_by_place(plan) for plan in plans)
    both = [pair for pair in now if pair in then]
    moved = max(both, key=lambda pair: abs(log(now[pair].tpot_s / then[pair].tpot_s)), default=None)
    most = "" if moved is None else f" Of all places it moves {moved} the most: {_instead(now[moved], then[moved])}."
    return f"{what}: {listing(told)}.{most}"


def _best_by_place(plan: PlatformPlan) -> dict[LanePair, PlannedSchedule]:
    """The fastest speculation of every placement."""
    return {one.pair: one for one in reversed(plan.speculation)}


def _instead(now: PlannedSchedule, then: PlannedSchedule) -> str:
    time, before = milliseconds(now.tpot_s), milliseconds(then.tpot_s)
    return f"{time} per token as before" if time == before else f"{time} per token instead of {before}"


def headline(plan: PlatformPlan) -> str:
    """The answer in a sentence."""
    if plan.comparison is None:
        return "No: nothing that drafts can be predicted on this platform."
    speed = f"{in_words(plan.comparison)} the speed of plain decoding"
    basis = f"by the platform's numbers and {plan.question.basis}"
    if plan.pays == "yes":
        return f"Yes, speculation pays here, {basis}: {speed}."
    if plan.pays == "no":
        return f"No, speculation does not pay here, {basis}: its best has {speed}."
    if plan.turns_on_acceptance:
        rate = plan.question.acceptance
        return (
            f"Cannot tell whether speculation pays here: its best has {speed} by {plan.question.basis}, "
            f"{percent(rate.value)}, which may be {percent(rate.low)} to {percent(rate.high)}. Measure it, or give it."
        )
    return f"Cannot tell from the platform's numbers whether speculation pays here: its best has {speed}."


def schedule_names_of(ranked: Sequence[PlannedSchedule]) -> tuple[str, ...]:
    """A name for each of one table."""
    names = schedule_names([(one.schedule, _placement(one)) for one in ranked])
    return tuple(f"{name}{UNTRAINED * one.needs_training}" for name, one in zip(names, ranked, strict=True))


def interval(one: PlannedSchedule) -> str:
    """The ends of a time per token; where nothing is known from below, the upper one."""
    if one.tpot_s_low <= 0:
        return f"up to {milliseconds(one.tpot_s_high)}"
    return f"{milliseconds(one.tpot_s_low).removesuffix(' ms')} to {milliseconds(one.tpot_s_high)}"


def _what_to_do(plan: PlatformPlan) -> Iterator[str]:
    best, plain, question = plan.drafting, plan.plain, plan.question
    alone = f"plain decoding of {question.target} on {_device(plan, plain.pair.target)}"
    if best is None or plan.pays == "no":
        yield f"Leave the draft out: {alone} is predicted to give {tokens_per_second(plain.tpot_s)}."
        if best is None:
            return
        yield f"The best that speculates is {_named(best)} with the {_places(plan, best.pair)}."
        return
    if plain.pair.target in (best.pair.target, best.pair.draft):
        alone = f"plain decoding of {question.target} on {plain.pair.target}"
    start = "Put the" if plan.pays == "yes" else "If it does, then with the"
    yield (
        f"{start} {_places(plan, best.pair)}: {settings(best.schedule, plan.profile)}, "
        f"{'while the target works' if best.schedule.traits.overlaps else 'then verify'}. "
        f"Predicted are {tokens_per_second(best.tpot_s)} ({interval(best)} per token); {alone}: "
        f"{tokens_per_second(plain.tpot_s)}."
    )


def _other_places(plan: PlatformPlan) -> Iterator[str]:
    """The best on every other placement next to plain decoding; what has been named before is not described again."""
    best = plan.drafting
    seen: set[LanePair] = set() if best is None else {best.pair}
    named = {plan.plain.pair.target} if best is None else {plan.plain.pair.target, best.pair.target, best.pair.draft}
    for one in plan.speculation:
        if one.pair in seen:
            continue
        seen.add(one.pair)
        found = plan.compared(one)
        target, draft = (lane if lane in named else _device(plan, lane) for lane in (one.pair.target, one.pair.draft))
        named |= {one.pair.target, one.pair.draft}
        where = f"both on {target}" if one.pair.is_pooled else f"the target on {target} and the draft on {draft}"
        how = f"it {_SLOWER[found.outcome]} than plain decoding, {in_words(found)}"
        yield f"With {where} the best is {_named(one)}: {how}."


def _limits(plan: PlatformPlan) -> Iterator[str]:
    best = plan.drafting
    yield from _after_training(plan)
    if best is not None:
        yield (
            f"Were every drafted token accepted and every draft in time, {_named(best)} could be at most "
            f"{factor(best.bound)} as fast as plain decoding."
        )
    is_plain = best is None or plan.pays == "no"
    chosen = plan.plain.pair if best is None or is_plain else best.pair
    needs = [need for need in plan.needs if need.pair == chosen and need.is_plain == is_plain]
    alike = {(need.needed_bytes, need.capacity_bytes): need for need in reversed(needs)}  # as members of a group are
    yield from (capital(need.in_words) for need in reversed(alike.values()))
    yield from _other_formats(plan)
    yield from (f"Left out: {reason.rstrip('.')}." for reason in plan.left_out)


def _after_training(plan: PlatformPlan) -> Iterator[str]:
    best = plan.after_training
    if best is not None:
        yield (
            f"Ranked first and not recommended is {_named(best)}, {in_words(plan.compared(best))} the speed of plain "
            f"decoding: no such exits of {plan.question.target.shape.name} are known. They would have to be trained; "
            "--trained-exits takes them as there."
        )


def _other_formats(plan: PlatformPlan) -> Iterator[str]:
    """Lanes of the ranking whose sheets name the types of weights that they run, and not the model's."""
    question = plan.question
    used = dict.fromkeys(
        held
        for one in plan.ranking
        for held in ((one.pair.target, question.target.weights), (one.pair.draft, question.draft.weights))
    )
    for lane, weights in used:
        formats = question.platform.device(question.platform.members(lane)[0]).weight_formats
        if formats and not {weights, _AS_WIDE.get(weights, weights)} & set(formats):
            yield (
                f"By its sheet {lane} runs weights in {listing(list(formats), 'or')}, not in {weights}: it is "
                "predicted as if it did."
            )


def _acceptance(plan: PlatformPlan) -> Iterator[str]:
    needed = plan.needed
    if needed is None:
        return
    now = f"here {percent(needed.now)} are"
    if needed.at is not None:
        ends = (
            "" if needed.low is None or needed.high is None else f" ({percent(needed.low)} to {percent(needed.high)})"
        )
        yield f"Speculation breaks even where {percent(needed.at)}{ends} of drafted tokens are accepted; {now}."
    elif needed.always or needed.never:
        how = "faster" if needed.always else "slower"
        yield f"Speculation is predicted to be {how} at every acceptance asked about, from 5 % to 95 %; {now}."


def _costs(plan: PlatformPlan) -> Iterator[str]:
    shown = [plan.plain] if plan.drafting is None else [plan.drafting, plan.plain]
    energy = [f"{one.schedule.traits.title} {one.energy_j_per_token:.2g} J" for one in shown if one.energy_j_per_token]
    money = [
        f"{one.schedule.traits.title} ${one.usd_per_million_tokens:.2f}" for one in shown if one.usd_per_million_tokens
    ]
    if energy:
        yield f"Energy per token: {listing(energy)}."
    if money:
        yield f"Price of a million tokens, power not included: {listing(money)}."


def _trust(plan: PlatformPlan) -> Iterator[str]:
    counts = Counter(one.status for one in plan.assumptions)
    known = [f"{counts[status]} {how}" for status, how in _KNOWN.items() if counts[status]]
    shapes = plan.question.target.shape, plan.question.draft.shape
    if is_taken_for_granted(*shapes):
        yield f"That {shapes[1].name} has the tokenizer of {shapes[0].name} is taken for granted: their sizes agree."
    yield f"Nothing was run for this plan. It rests on {counted(len(plan.assumptions), 'number')}: {listing(known)}."
    shaky = sorted(plan.assumptions, key=lambda one: -one.relative_error)[:_MOST_SHAKY]
    named = [f"{one.field} {one.value:.3g} ({one.low:.3g} to {one.high:.3g})" for one in shaky if one.relative_error]
    yield f"The least certain: {listing(named)}."


def _named(one: PlannedSchedule) -> str:
    return schedule_name(one.schedule, _placement(one))


def _placement(one: PlannedSchedule) -> str:
    if not one.schedule.num_speculative_tokens:
        return "alone"
    return "in turn" if one.pair.in_turn else "split"


def _places(plan: PlatformPlan, pair: LanePair) -> str:
    target, draft = plan.question.target, plan.question.draft
    if pair.is_pooled:
        return f"target ({target}) and the draft ({draft}) on {_device(plan, pair.target)}"
    return f"target ({target}) on {_device(plan, pair.target)} and the draft ({draft}) on {_device(plan, pair.draft)}"


def _device(plan: PlatformPlan, lane: str) -> str:
    if lane.endswith(SECOND_STREAM):
        return f"{lane} (a second stream of the same device)"
    members = plan.question.platform.members(lane)
    name = plan.question.platform.device(members[0]).name
    return f"{lane} ({name})" if len(members) == 1 else f"{lane} ({len(members)} of {name})"
