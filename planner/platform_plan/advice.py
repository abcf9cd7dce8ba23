"""The sentences that `mirrorsd plan` prints: whether to speculate, where to put the draft, and from which numbers."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, get_args

from costs.split_cost import FEWEST_COPIED
from hwprofiles.engines import ANYWHERE, made_for_engine, splits_layers
from hwprofiles.machines.assumed_parts import assumed_of
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.model_shape import ModelShape
from hwprofiles.models.head_shapes import LOOKUP
from hwprofiles.platform import SECOND_STREAM
from hwprofiles.quantity import Status
from planner.first_of_each import first_of_each
from planner.one_tokenizer import tokenizer_is_assumed
from planner.plan_engines import beside_engine, best_with_engine, doubts_of_times, engines_of
from planner.platform_plan.choices import MachineChoice
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import split_by_llama_cpp, weights_that_fit
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each
from planner.platform_plan.question import MOST_DRAFTED, Question
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.platform_plan.split_places import layer_split
from planner.platform_plan.trade_offs import differences, saves
from planner.published.published_gains import ACCURACY, published_like
from planner.verdict import Claim, SpeculationVerdict, times
from planner.wording import counted, factor, listing, milliseconds, on_lanes, percent, schedule_name, tokens_per_second

_CLOSE: Final = 0.85
"""A placement that may be as fast as the best one, and saves something, is named from this share of its speed on."""
_MOST_MOVED: Final = 4
"""Number of places, the fastest first, whose changes `what_if` names."""
_MOST_WEIGHTS: Final = 3
"""Number of weight formats that are named as fitting."""


def advice(plan: PlatformPlan) -> SpeculationVerdict:
    """Return the verdict on a plan."""
    best, plain = plan.drafting, plan.plain
    chosen = plan.recommended
    name = schedule_name(chosen.schedule, chosen.placement)
    doubt = "; the uncertainty of the acceptance comes on top" * plan.turns_on_acceptance
    return SpeculationVerdict(
        pays=plan.pays,
        claim=None if best is None else Claim(one=best.place, other=plain.place, ratio=plan.compared(best)),
        basis="no drafting can be predicted on this platform"
        if best is None
        else f"predicted from {_numbers(plan)} and {plan.question.basis}{doubt}",
        recommended=name,
        schedule=chosen.schedule,
        why=tuple(_why(plan)),
        next_step=tuple(_next(plan, chosen, name)),
        facts=_facts(plan, chosen),
        warnings=tuple(_warnings(plan)),
    )


def what_if(changed: MachineChoice, before: MachineChoice, changes: Sequence[str]) -> str:
    """Return a sentence on what changed numbers, such as `npu.memory_efficiency=0.5`, do to the predicted times."""
    now, then = _times_s(changed), _times_s(before)
    by_time = sorted(now, key=lambda name: (name != "plain decoding", now[name]))
    moved = [
        f"{name} {milliseconds(now[name])} per token instead of {milliseconds(then[name])}"
        for name in by_time
        if name in then and milliseconds(now[name]) != milliseconds(then[name])
    ]
    told = "; ".join(moved[:_MOST_MOVED]) or "no placement changes its predicted time"
    return f"What if {' and '.join(changes)}: {told}."


def _times_s(choice: MachineChoice) -> dict[str, float]:
    """Return the time per token of plain decoding, and of the best speculation by place.

    Layer splits over the same devices count as one place, since changed numbers may move layers.
    """
    plan = choice.drafts[0].plan

    def place(pair: LanePair) -> str:
        split = LayerSplit.of(pair.target)
        devices = {} if split is None else {pair.target: listing([*split.devices])}
        return str(
            pair._replace(target=devices.get(pair.target, pair.target), draft=devices.get(pair.draft, pair.draft))
        )

    drafting = {f"speculation, {place(one.pair)}": one.tpot_s for one in reversed(plan.speculation)}
    return {"plain decoding": plan.plain.tpot_s} | drafting


def held_back(plan: PlatformPlan) -> str | None:
    """Say what the target would need on the fastest lane that cannot hold it; None if that lane is no faster."""
    question = plan.question

    def bytes_per_s(lane: str) -> float:
        rates = [question.platform.reading_peak(member).value for member in question.platform.members(lane)]
        return sum(rates) if LayerSplit.of(lane) is None else min(rates)

    misfits = [need for need in plan.needs if need.is_plain and not need.fits]
    if not misfits:
        return None
    fastest = max(misfits, key=lambda need: bytes_per_s(need.pair.target))
    lane = fastest.pair.target
    if bytes_per_s(lane) <= bytes_per_s(plan.recommended.pair.target):
        return None
    weights = weights_that_fit(question, lane)
    would = f"--weights {' or '.join(weights[:_MOST_WEIGHTS])} would fit" if weights else "no common weights would fit"
    would = "; ".join([would, *split_by_llama_cpp(question)])
    needed = f"{fastest.needed_bytes / 1e9:.1f} GB needed, {(fastest.capacity_bytes or 0) / 1e9:.1f} GB usable"
    needed += " on each" * (len(question.platform.members(lane)) > 1)
    return f"{_device(plan, lane)} cannot hold {question.target} ({needed}; {would})"


def _why(plan: PlatformPlan) -> Iterator[str]:
    if (reason := held_back(plan)) is not None:
        yield reason
    best, needed = plan.drafting, plan.needed
    if best is not None:
        speeds = tokens_per_second(best.tpot_s), tokens_per_second(plan.plain.tpot_s)
        yield f"{speeds[0]} with the best speculation, {speeds[1]} without"
        for one in _other_places(plan, best):
            beside = plan.compared(one, best)
            if beside.outcome == "cannot tell" and beside.value > _CLOSE and saves(one, best):
                yield f"not distinguishable from {_beside(plan, one, best)}"
    yield from _too_large(plan)
    if best is None and LayerSplit.of(plan.plain.pair.target) and layer_split(plan.question, has_draft=True) is None:
        draft = plan.question.draft
        yield f"no memory has room for {draft} ({draft.shape.weight_bytes(draft.weights) / 1e9:.1f} GB) beside it"
    if needed is None:
        return
    if needed.at is not None:
        ends = _ends(needed.low, needed.high)
        yield f"speculation breaks even at {percent(needed.at)} acceptance{ends}; here: {percent(needed.now)}"
    elif needed.always or needed.never:
        how, side, sure = ("faster", "above", needed.high) if needed.always else ("slower", "below", needed.low)
        surely = "" if sure is None else f", beyond its interval {side} {percent(sure)}"
        yield f"predicted {how} at every acceptance from 5 % to 95 %{surely}; here: {percent(needed.now)}"


def _too_large(plan: PlatformPlan) -> list[str]:
    """Return, if speculation does not pay, one memory in which both models do not fit together.

    It is the memory where plain decoding is the fastest; if nothing drafts, any.
    """
    if plan.pays == "yes":
        return []
    misfits = [need for need in plan.needs if not need.is_plain and not need.fits]
    if plan.needed is not None:
        misfits = [need for need in misfits if need.pair == LanePair.alone(plan.plain.pair.target)]
    return [need.in_words.rstrip(".") for need in sorted(misfits, key=lambda need: need.needed_bytes)[:1]]


def _ends(low: float | None, high: float | None) -> str:
    """Return an interval of rates in words; an end that lies beyond `RATES` is None."""
    if low is None or high is None:
        known = f"from {percent(low)}" if low is not None else f"up to {percent(high)}" if high is not None else ""
        return f" (90 % interval: {known})" if known else ""
    return f" ({percent(low)} to {percent(high)})"


def _next(plan: PlatformPlan, chosen: PlannedSchedule, name: str) -> Iterator[str]:
    if plan.pays == "cannot_tell" and plan.turns_on_acceptance:
        rate = plan.question.acceptance
        how = "was recorded on other or few texts" if plan.question.assumed is None else "is assumed"
        yield (
            f"measure the acceptance, or give it (--acceptance): it {how}, and may be {percent(rate.low)} to "
            f"{percent(rate.high)}"
        )
    elif plan.pays == "cannot_tell":
        has_one = plan.comparison is not None and plan.comparison.num_pairs == 1
        on_machine = "measure both on the machine: data sheets cannot tell them apart"
        yield "more than one prompt would decide" if has_one else on_machine
    if not chosen.schedule.num_speculative_tokens:
        until = "until then " * (plan.pays == "cannot_tell")
        yield f"{until}leave the draft out: decode {plan.question.target} on {_device(plan, chosen.pair.target)}"
        yield from beside_engine(plan)
        return
    yield f'{"use" if plan.pays == "yes" else "try"} "{name}" {on_lanes(chosen.schedule)}'
    both = f" and {plan.question.draft}" * chosen.pair.is_pooled
    yield f"{chosen.pair.target} is {_device(plan, chosen.pair.target)} with {plan.question.target}{both}"
    if not chosen.pair.is_pooled:
        yield f"{chosen.pair.draft} is {_device(plan, chosen.pair.draft)} with {plan.question.draft}"
    if chosen.schedule.num_speculative_tokens == MOST_DRAFTED and not chosen.schedule.is_tree:
        yield f"try longer drafts, too: {MOST_DRAFTED} tokens are the most that are planned"
    yield from beside_engine(plan)


def _other_places(plan: PlatformPlan, best: PlannedSchedule) -> list[PlannedSchedule]:
    others = (one for one in best_of_each(plan.speculation) if one.pair != best.pair)
    return first_of_each(others, lambda one: one.pair)


def _beside(plan: PlatformPlan, one: PlannedSchedule, best: PlannedSchedule) -> str:
    """Return how a placement compares with the best one: speed, and what else differs."""
    return ", ".join((f"{one.place} at {times(plan.compared(one, best))}", *differences(one, best)))


def _facts(plan: PlatformPlan, chosen: PlannedSchedule) -> dict[str, Sequence[str]]:
    best, counts = plan.drafting, Counter(one.status for one in plan.assumptions)
    is_plain = not chosen.schedule.num_speculative_tokens
    needs = [need for need in plan.needs if need.pair == chosen.pair and need.is_plain == is_plain]
    alike = {(need.needed_bytes, need.capacity_bytes): need.in_words for need in reversed(needs)}
    return {
        "Other placements, speed relative to the best": []
        if best is None
        else [_beside(plan, one, best) for one in _other_places(plan, best)],
        "Engines that run it": [f"{one.engine}: {one.options}" for one in engines_of(plan, chosen)] or ["none known"],
        "Memory": list(reversed(alike.values())),
        "Left out": plan.left_out,
        f"The prediction uses {len(plan.assumptions)} numbers": [
            f"{counts[status]} {status}" for status in get_args(Status) if counts[status]
        ],
        "Accuracy of such predictions": [ACCURACY],
    }


def _warnings(plan: PlatformPlan) -> Iterator[str]:
    best, question = plan.after_training, plan.question
    if best is not None:
        yield (
            f"The first row of the table ({times(plan.compared(best))} the speed of plain decoding) needs a trained "
            f"exit, and none is known for {question.target.shape.name}, so it is not recommended. --trained-exits "
            "assumes one."
        )
    yield from _carried(question)
    yield from assumed_of(question.platform)
    yield from _as_if_run(plan)
    yield from doubts_of_times(plan)
    yield from _first_token(plan)
    yield from _unused_cards(plan)
    yield from _too_long(question)
    if plan.drafting is not None and plan.pays != "no" and plan.doubts.about(plan.drafting.schedule):
        yield from _published(plan)
    yield from _of_draft(question)


def _carried(question: Question) -> Iterator[str]:
    if question.calibrated is not None and question.calibrated.in_words is not None:
        yield question.calibrated.in_words


def _as_if_run(plan: PlatformPlan) -> Iterator[str]:
    """Name devices that hold weights in a format that their data sheets do not list."""
    devices_by_text, platform, question = defaultdict[str, list[str]](list), plan.question.platform, plan.question
    held = dict.fromkeys(
        (device, model.weights)
        for one in plan.ranking
        for model, devices in (
            (question.target, platform.members(one.pair.target)),
            (question.draft, one.pair.drafters(platform) if one.schedule.num_speculative_tokens else ()),
        )
        for device in devices
    )
    for device, weights in held:
        sheet = platform.device(device)
        if not sheet.runs(weights):
            text = f"only weights in {' or '.join(sheet.weight_formats)}; predicted as if it ran {weights}"
            devices_by_text[text].append(device)
    yield from (f"Data sheet of {listing(devices)}: {text}." for text, devices in devices_by_text.items())


def _too_long(question: Question) -> Iterator[str]:
    drafted = _most_drafted(question)
    if drafted < MOST_DRAFTED:
        shortest = min(_models(question), key=lambda shape: shape.max_position)
        yield (
            f"Drafts of more than {counted(drafted, 'token')} are left out: they would exceed the "
            f"{shortest.max_position:,} positions of {shortest.name}. A prompt that is "
            f"{counted(MOST_DRAFTED - drafted, 'token')} shorter leaves room for them."
        )


def _of_draft(question: Question) -> Iterator[str]:
    head, shapes = question.draft.head, _models(question)
    if head not in (None, LOOKUP, "mtp"):
        name, is_several = shapes[1].name, shapes[1].name.endswith("heads")
        yield f"Assumed: {'' if is_several else 'a '}trained {name}."
    elif head is None and tokenizer_is_assumed(*shapes):
        yield f"Assumed: {shapes[1].name} has the tokenizer of {shapes[0].name}, since their vocabulary sizes agree."


def _published(plan: PlatformPlan) -> Iterator[str]:
    """Say how often engines realised gains that were predicted to be like this one; all drafted in turn."""
    in_turn = (one for one in plan.speculation if not one.schedule.traits.overlaps and engines_of(plan, one))
    one = next(in_turn, None)
    if one is not None:
        gain = plan.compared(one).value
        what = "" if one is plan.drafting else f", as the best of an engine is ({factor(gain)}, {one.place})"
        yield published_like(gain, what)


def _unused_cards(plan: PlatformPlan) -> Iterator[str]:
    """Name cards that the recommended command leaves unused: only llama.cpp splits layers over different cards."""
    platform, weights = plan.question.platform, plan.question.target.weights
    pair = (best_with_engine(plan) or plan.recommended).pair
    needs_another = made_for_engine(weights) not in (None, ANYWHERE)
    cards = {
        name: device
        for name, device in platform.devices.items()
        if device.kind == "gpu"
        and platform.has_own_memory(name)
        and (needs_another or not splits_layers(device, weights))
    }
    used = {name for lane in pair[:2] for name in platform.members(lane.removesuffix(SECOND_STREAM))}
    left = {name: device for name, device in cards.items() if all(device != cards.get(one) for one in used)}
    if any(one != other for one in left.values() for other in cards.values()):
        yield f"Unused: {listing(list(left))}, since a split of {weights} weights over different cards is not planned."


def _first_token(plan: PlatformPlan) -> Iterator[str]:
    """Say why a long prompt takes long where layers are on a CPU, and which options of llama.cpp shorten that."""
    split, prompt = LayerSplit.of(plan.recommended.pair.target), plan.question.record.contexts.start
    if plan.recommended.ttft_s is not None and split is not None and split.cpu and prompt > FEWEST_COPIED:
        card = next(iter(split.layers))
        yield (
            f"Time to the first token: for every 512 tokens of a prompt, llama.cpp copies the weights that {split.cpu} "
            f"holds to {card}, which is assumed to be as fast as the link. --no-mmap avoids slower copies of mapped "
            "files; a larger -ub copies less often, but leaves room for fewer layers on the card."
        )


def _numbers(plan: PlatformPlan) -> str:
    """Return in words where the times of lanes come from."""
    if plan.question.calibrated is None or not plan.question.calibrated.has_target:
        return "the platform's numbers"
    return "the calibration, data sheets of added devices" if plan.machine.speeds else "the calibration"


def _models(question: Question) -> tuple[ModelShape, ModelShape]:
    return question.target.shape, question.draft.shape


def _most_drafted(question: Question) -> int:
    """Return how many tokens a draft may have after the longest context; its last token needs no position."""
    room = min(shape.max_position for shape in _models(question)) - question.num_tokens
    return room + 1


def _device(plan: PlatformPlan, lane: str) -> str:
    if lane.endswith(SECOND_STREAM):
        return "a second stream of the same device"
    members = plan.question.platform.members(lane)
    names = [plan.question.platform.device(member).name for member in members]
    if (split := LayerSplit.of(lane)) is not None:
        return listing([f"{split.share_of(one)} on {name}" for one, name in zip(members, names, strict=True)])
    return names[0] if len(members) == 1 else f"{len(members)} × {names[0]}"
