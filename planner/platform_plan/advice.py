"""The verdict on a platform: whether to speculate, where to put the draft, and what that rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Final

from hwprofiles.model_shape import WeightFormat
from hwprofiles.platform import SECOND_STREAM
from hwprofiles.quantity import Status
from planner.one_tokenizer import is_taken_for_granted
from planner.paired_ratio import Outcome
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.verdict import Claim, SpeculationVerdict, times
from planner.wording import factor, milliseconds, percent, schedule_names, settings, tokens_per_second

_MOST_UNCERTAIN: Final = 5
UNTRAINED: Final = " (exit to be trained)"
TRACK_RECORD: Final = (13, 20)
"""Published measurements that such predictions meet, of those that `docs/platforms.md` lists with each miss."""
_KNOWN: Final[Mapping[Status, str]] = {
    "measured": "measured",
    "datasheet": "from data sheets",
    "derived": "derived from others",
    "guessed": "guessed",
}
_ORDERS: Final[Mapping[Outcome, str]] = {
    "faster": "faster than",
    "cannot tell": "not told apart from",
    "slower": "slower than",
}
_AS_WIDE: Final[Mapping[WeightFormat, str]] = {"bf16": "fp16"}


def advice(plan: PlatformPlan) -> SpeculationVerdict:
    """Return the verdict on a plan."""
    best, plain = plan.drafting, plan.plain
    names = dict(zip(map(id, plan.ranking), schedule_names_of(plan.ranking), strict=True))
    chosen = plain if best is None or plan.pays == "no" else best
    return SpeculationVerdict(
        pays=plan.pays,
        claim=None if best is None else _claim(plan, best),
        basis="nothing that drafts can be predicted on this platform"
        if best is None
        else f"predicted from the platform's numbers and {plan.question.basis}",
        recommended=names[id(chosen)],
        schedule=chosen.schedule,
        why=tuple(_why(plan)),
        next_step=tuple(_next(plan, chosen)),
        facts=tuple((label, tuple(items)) for label, items in _facts(plan, chosen)),
        warnings=tuple(_warnings(plan)),
    )


def what_if(changed: PlatformPlan, before: PlatformPlan, changes: Sequence[str]) -> str:
    """Say what some changes of a platform's numbers bring, such as `npu.memory_efficiency=0.5`."""
    plans = changed, before
    what = f"What if {' and '.join(changes)}"
    if len({tuple((one.pair, one.schedule, one.tpot_s) for one in plan.ranking) for plan in plans}) == 1:
        return f"{what}: no schedule is predicted to be any faster or slower."
    told = [f"plain decoding takes {_instead(changed.plain, before.plain)}"]
    if changed.drafting is not None and before.drafting is not None:
        told.append(f"the best speculation takes {_instead(changed.drafting, before.drafting)}")
    now, then = ({one.pair: one for one in reversed(plan.speculation)} for plan in plans)
    moved = max(
        (pair for pair in now if pair in then),
        key=lambda pair: abs(log(now[pair].tpot_s / then[pair].tpot_s)),
        default=None,
    )
    if moved is not None:
        told.append(f"the place that changes most is {moved}, {_instead(now[moved], then[moved])}")
    return f"{what}: {'; '.join(told)}."


def _instead(now: PlannedSchedule, then: PlannedSchedule) -> str:
    time, before = milliseconds(now.tpot_s), milliseconds(then.tpot_s)
    return f"{time} per token as before" if time == before else f"{time} per token instead of {before}"


def schedule_names_of(ranked: Sequence[PlannedSchedule]) -> tuple[str, ...]:
    """Name each schedule of one table."""
    names = schedule_names([(one.schedule, _placement(one)) for one in ranked])
    return tuple(f"{name}{UNTRAINED * one.needs_training}" for name, one in zip(names, ranked, strict=True))


def interval(one: PlannedSchedule) -> str:
    """Return the ends of a time per token; where nothing is known from below, the upper one."""
    if one.tpot_s_low <= 0:
        return f"up to {milliseconds(one.tpot_s_high)}"
    return f"{milliseconds(one.tpot_s_low).removesuffix(' ms')} to {milliseconds(one.tpot_s_high)}"


def _why(plan: PlatformPlan) -> Iterator[str]:
    best, needed = plan.drafting, plan.needed
    if best is not None:
        speeds = tokens_per_second(best.tpot_s), tokens_per_second(plan.plain.tpot_s)
        yield f"{speeds[0]} with the best speculation, {speeds[1]} without"
    if needed is None:
        return
    if needed.at is not None:
        known = needed.low is not None and needed.high is not None
        ends = f" ({percent(needed.low or 0.0)} to {percent(needed.high or 0.0)})" if known else ""
        yield f"it breaks even at an acceptance of {percent(needed.at)}{ends}, here it is {percent(needed.now)}"
    elif needed.always or needed.never:
        how = "faster" if needed.always else "slower"
        yield f"it is {how} at every acceptance from 5 % to 95 %, here it is {percent(needed.now)}"


def _next(plan: PlatformPlan, chosen: PlannedSchedule) -> Iterator[str]:
    if plan.pays == "cannot_tell" and plan.turns_on_acceptance:
        rate = plan.question.acceptance
        yield (
            f"measure the acceptance, or give it (--acceptance): it is assumed, and may be {percent(rate.low)} to "
            f"{percent(rate.high)}"
        )
    elif plan.pays == "cannot_tell":
        yield "measure both on the machine: its numbers are not known well enough"
    if not chosen.schedule.num_speculative_tokens:
        yield f"leave the draft out: decode {plan.question.target} on {_device(plan, chosen.pair.target)}"
        return
    yield settings(chosen.schedule, plan.profile)
    both = f" and {plan.question.draft}" * chosen.pair.is_pooled
    yield f"{chosen.pair.target} is {_device(plan, chosen.pair.target)} with {plan.question.target}{both}"
    if not chosen.pair.is_pooled:
        yield f"{chosen.pair.draft} is {_device(plan, chosen.pair.draft)} with {plan.question.draft}"


def _facts(plan: PlatformPlan, chosen: PlannedSchedule) -> Iterator[tuple[str, Sequence[str]]]:
    best = plan.drafting
    by_place = {one.pair: one for one in reversed(plan.speculation) if best is None or one.pair != best.pair}
    elsewhere = [_claim(plan, one) for one in sorted(by_place.values(), key=lambda one: one.tpot_s)]
    for order, label in _ORDERS.items():
        found = [f"{claim.one} {times(claim.ratio)}" for claim in elsewhere if claim.outcome == order]
        yield f"Other places, {label} plain decoding", found
    if best is not None:
        yield "At most, with a perfect draft, times plain decoding", [f"{_named(best)} {factor(best.bound)}"]
    is_plain = not chosen.schedule.num_speculative_tokens
    needs = [need for need in plan.needs if need.pair == chosen.pair and need.is_plain == is_plain]
    alike = {(need.needed_bytes, need.capacity_bytes): need.in_words for need in reversed(needs)}
    yield "Memory", list(reversed(alike.values()))
    yield "Left out", plan.left_out
    shown = [one for one in (best, plan.plain) if one is not None]
    yield (
        "Energy per token",
        [f"{_named(one)} {one.energy_j_per_token:.2g} J" for one in shown if one.energy_j_per_token],
    )
    yield (
        "Price of a million tokens, power not included",
        [f"{_named(one)} ${one.usd_per_million_tokens:.2f}" for one in shown if one.usd_per_million_tokens],
    )
    counts = Counter(one.status for one in plan.assumptions)
    known = [f"{counts[status]} {how}" for status, how in _KNOWN.items() if counts[status]]
    yield f"It rests on {len(plan.assumptions)} numbers", known
    widest = sorted(plan.assumptions, key=lambda one: -one.relative_error)[:_MOST_UNCERTAIN]
    named = [f"{one.field} {one.value:.3g} ({one.low:.3g} to {one.high:.3g})" for one in widest if one.relative_error]
    yield "The least certain of them", named
    met, num_published = TRACK_RECORD
    yield "Track record", [f"{met} of {num_published} published measurements predicted within their tolerance"]


def _warnings(plan: PlatformPlan) -> Iterator[str]:
    best, shapes = plan.after_training, (plan.question.target.shape, plan.question.draft.shape)
    if best is not None:
        yield (
            f"The first of the table needs an exit that has to be trained, and is not recommended ({_named(best)}, "
            f"{times(plan.compared(best))} the speed of plain decoding): no such exits of {shapes[0].name} are known. "
            "--trained-exits takes them as there."
        )
    yield from _other_formats(plan)
    if is_taken_for_granted(*shapes):
        yield f"That {shapes[1].name} has the tokenizer of {shapes[0].name} is taken for granted: their sizes agree."


def _other_formats(plan: PlatformPlan) -> Iterator[str]:
    """Warn of lanes of the ranking whose sheets name the types of weights that they run, and not the model's."""
    question = plan.question
    used = dict.fromkeys(
        held
        for one in plan.ranking
        for held in ((one.pair.target, question.target.weights), (one.pair.draft, question.draft.weights))
    )
    for lane, weights in used:
        formats = question.platform.device(question.platform.members(lane)[0]).weight_formats
        if formats and not {weights, _AS_WIDE.get(weights, weights)} & set(formats):
            yield f"By its sheet {lane} runs weights in {' or '.join(formats)}; it is predicted as if it ran {weights}."


def _claim(plan: PlatformPlan, one: PlannedSchedule) -> Claim:
    """Compare a schedule with the fastest plain decoding."""
    return Claim(one=f"{_named(one)}, {one.place}", other=_named(plan.plain), ratio=plan.compared(one))


def _named(one: PlannedSchedule) -> str:
    return schedule_names([(one.schedule, _placement(one))])[0]


def _placement(one: PlannedSchedule) -> str:
    if not one.schedule.num_speculative_tokens:
        return "alone"
    return "in turn" if one.pair.in_turn else "split"


def _device(plan: PlatformPlan, lane: str) -> str:
    """Return what a lane is made of."""
    if lane.endswith(SECOND_STREAM):
        return "a second stream of the same device"
    members = plan.question.platform.members(lane)
    name = plan.question.platform.device(members[0]).name
    return name if len(members) == 1 else f"{len(members)} of {name}"
