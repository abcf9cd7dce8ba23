"""A target that no card holds: some layers on each, the rest on the CPU, as llama.cpp's `-ngl` and `-ts` split them.

Of a mixture all layers are on cards, but for the experts of as many as have to be on the CPU (`--n-cpu-moe`). It is
worked out beside the ranking, from the same costs: all parts of a pass take turns, and so does the draft, which is on a
card. Times have no interval.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from costs.round_plan import DRAFT_READS, DRAFT_STEP, LAYER, LM_HEAD
from decoding.schedule import Schedule
from hwprofiles.engines import splits_layers
from hwprofiles.models.head_shapes import IN_ONE_PASS, LOOKUP
from hwprofiles.platform import Platform
from planner.platform_plan.device_pairs import LanePair, usable_bytes, usable_lanes
from planner.platform_plan.question import Question, demand_of
from planner.platform_plan.runs_on import SPLIT_TENSORS, drafting_head, runs_on
from planner.wording import factor, listing, tokens_per_second
from sim.derived.derived_profile import lane_cost
from sim.derived.roofline import RooflineCost

if TYPE_CHECKING:
    from planner.platform_plan.platform_plan import PlatformPlan
    from planner.platform_plan.ranked_schedules import PlannedSchedule

_ENGINE: Final = "llama.cpp"
_STATE_BYTES: Final = 2.0
_CARDS: Final = "cards"


class LayerSplit(NamedTuple):
    """Layers of a target on a CPU, and after them those on cards, one card's after the other's.

    Attributes:
        layers: how many are on each card, the fastest first, as CUDA mostly has them; the last has the `lm_head`, too.
        cpu: lane of the others, and of the embeddings.
        of_layers: of the target.
        apart: layers of a mixture whose experts are on the CPU wherever the layers are: the first that have any.
        home: the card of the draft; None where none has room for it, so that decoding there is plain.
        num_more: blocks of a head that are in the target's file, and on the last card.
    """

    layers: Mapping[str, int]
    cpu: str
    of_layers: int
    apart: range
    home: str | None
    num_more: int

    @property
    def num_left(self) -> int:
        """Layers on the CPU."""
        return self.of_layers - sum(self.layers.values())

    @property
    def apart_on(self) -> dict[str, int]:
        """Layers of each card whose experts are not there."""
        first, found = self.num_left, {}
        for card, count in self.layers.items():
            found[card] = len(range(max(first, self.apart.start), min(first + count, self.apart.stop)))
            first += count
        return found

    @property
    def options(self) -> str:
        """What llama.cpp is told; it counts the `lm_head` as a layer, and the first that a card gets (#18148).

        Of the first layers whose experts are to be on the CPU it counts those that have none, too.
        """
        *others, last = self.layers.values()
        counts = [*others, last + self.num_more + 1]
        shares = f" -ts {','.join(map(str, counts))}" if others else ""
        experts = f" --n-cpu-moe {self.apart.stop}" if self.apart else ""
        return f"-ngl {sum(counts)}{shares}{experts}"

    def __str__(self) -> str:
        (first, count), *others = self.layers.items()
        places = [f"{count} of {self.of_layers} layers on {first}", *(f"{more} on {card}" for card, more in others)]
        places += [f"the rest on {self.cpu}"] * (self.num_left > 0)
        return listing([*places, *[f"the experts of {len(self.apart)} on {self.cpu}"] * bool(self.apart)])


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialOffload:
    """The split that fits, and the best draft length there.

    Attributes:
        layers: on each card.
        cpu: the lane of the others.
        of_layers: of the target.
        num_apart: layers whose experts are on the CPU.
        plain_tpot_s: time per token of the fastest plain decoding, whose split has no draft to make room for.
        num_drafted, tpot_s: draft length of the fastest speculation, and its time per token; 0 drafted where none pays.
        drafting_tpot_s: time per token of the fastest speculation, whether or not it pays; None where nothing drafts.
        options: llama.cpp's command.
        place: where the layers are.
        weights: of the target.
    """

    layers: Mapping[str, int]
    cpu: str
    of_layers: int
    num_apart: int
    plain_tpot_s: float
    num_drafted: int
    tpot_s: float
    drafting_tpot_s: float | None
    options: str
    place: str
    weights: str

    @property
    def speedup(self) -> float:
        """Speed over plain decoding."""
        return self.plain_tpot_s / self.tpot_s

    @property
    def name(self) -> str:
        """What is decoded there."""
        return f"{self.num_drafted} drafted" if self.num_drafted else "plain"

    @property
    def speed(self) -> str:
        """Where it decodes and how fast, without and with a draft."""
        plain = tokens_per_second(self.plain_tpot_s)
        if self.drafting_tpot_s is None:
            return f"{self.place}, {plain}, plain"
        gain, fastest = factor(self.plain_tpot_s / self.drafting_tpot_s), tokens_per_second(self.tpot_s)
        if not self.num_drafted:
            return f"{self.place}, {plain}, plain ({gain} with the best speculation)"
        return f"{self.place}, {fastest} with {self.name}, {plain} without ({gain})"

    @property
    def in_words(self) -> str:
        """A sentence."""
        left_out = "it has no interval, and batches, sweeps and pictures leave it out"
        return f"Faster than all of the table: {self.speed}; {left_out}"


def layer_split(question: Question, *, has_draft: bool) -> LayerSplit | None:
    """Return as much of a target as cards hold beside the draft, or alone, if a CPU holds the rest.

    A head in the target's file is always there. None if a single card holds all, or none holds any.
    """
    platform, target = question.platform, question.target
    lanes = [name for name in usable_lanes(platform)[0] if name in platform.devices]
    cpu = next(iter(_by_speed(question, [name for name in lanes if platform.device(name).kind == "cpu"])), None)
    cards = _by_speed(question, [name for name in lanes if _is_card(platform, name, target.weights)])
    if cpu is None:
        return None
    return _split(question, cards, cpu, has_draft=has_draft or question.draft.is_in_target)


def _split(question: Question, cards: Sequence[str], cpu: str, *, has_draft: bool) -> LayerSplit | None:
    """Return the split over some of the cards, with the draft on one of them or not; None where there is none."""
    platform, target, shape = question.platform, question.target, question.target.shape
    stops = range(shape.dense_layers, shape.num_layers + 1) if shape.num_experts else range(1)
    layers, apart = {}, range(0)
    for stop in stops:
        layers, apart = _filled(question, cards, stop, has_draft=has_draft), range(stops.start, stop)
        if sum(layers.values()) == shape.num_layers:
            break
    split = LayerSplit(
        layers=layers,
        cpu=cpu,
        of_layers=shape.num_layers,
        apart=apart,
        home=_home(question, list(layers)) if has_draft and layers else None,
        num_more=int(question.draft.is_in_target),
    )
    held_bytes = split.of_layers * shape.layer_weight_bytes(target.weights, inf)
    tables_bytes = shape.weight_bytes(target.weights) - held_bytes
    embedding_bytes = tables_bytes if shape.tie_embeddings else tables_bytes - target.head_bytes
    layer_bytes, expert_bytes = _layer_bytes(question)
    left_bytes = split.num_left * layer_bytes + len(apart) * expert_bytes + embedding_bytes
    usable = usable_bytes(platform, platform.room_of(cpu))
    has_room = usable is None or left_bytes <= usable
    return split if layers and has_room and (split.num_left or apart or len(layers) > 1) else None


def _filled(question: Question, cards: Sequence[str], num_light: int, *, has_draft: bool) -> dict[str, int]:
    """Return how many layers each card gets if the first is filled first; those that would get none are left out.

    The first `num_light` layers have no experts there.
    """
    if not cards:
        return {}
    rooms, layers = _rooms(question, cards, has_draft=has_draft), dict.fromkeys(cards, 0)
    layer_bytes, expert_bytes = _layer_bytes(question)
    sizes, left = (layer_bytes, layer_bytes + expert_bytes), [num_light, question.target.shape.num_layers - num_light]
    for card in cards:
        for place, num_bytes in enumerate(sizes):
            count = max(0, min(left[place], int(rooms[card] / num_bytes)))
            layers[card] += count
            rooms[card] -= count * num_bytes
            left[place] -= count
    filled = [card for card in cards if layers[card]]
    return layers if len(filled) == len(cards) else _filled(question, filled, num_light, has_draft=has_draft)


def _rooms(question: Question, cards: Sequence[str], *, has_draft: bool) -> dict[str, float]:
    """Return the bytes that cards have for layers, beside the draft, if one has it, and the `lm_head`."""
    draft = question.draft
    rooms = {card: usable_bytes(question.platform, card) or 0.0 for card in cards}
    if has_draft:
        rooms[_home(question, cards)] -= draft.shape.weight_bytes(draft.weights) + draft.kv_bytes(question.num_tokens)
    rooms[cards[-1]] -= question.target.head_bytes
    return rooms


def _home(question: Question, cards: Sequence[str]) -> str:
    """Return the card of the draft, of some with the fastest first: a head is beside the `lm_head`."""
    return cards[-1] if question.draft.head is not None else cards[0]


def _by_speed(question: Question, cards: Sequence[str]) -> list[str]:
    costs, context = _costs(question, cards), float(question.record.contexts.start)
    return sorted(cards, key=lambda card: costs[card].one(LAYER, 1, context))


def _layer_bytes(question: Question) -> tuple[float, float]:
    """Return the bytes of a layer with its cache, but without experts, and those of the experts of one that has any."""
    target, shape, num_layers = question.target, question.target.shape, question.target.shape.num_layers
    expert_bytes = shape.expert_bytes(target.weights)
    layer_bytes = shape.layer_weight_bytes(target.weights, inf) - expert_bytes
    num_mixed = max(1, num_layers - shape.dense_layers)
    return layer_bytes + target.kv_bytes(question.num_tokens) / num_layers, expert_bytes * num_layers / num_mixed


def _costs(question: Question, lanes: Sequence[str]) -> dict[str, RooflineCost]:
    demand = demand_of(question, lanes)
    return {lane: lane_cost(question.platform, demand, lane) for lane in lanes}


def _is_card(platform: Platform, name: str, weights: str) -> bool:
    """Return whether it is a GPU with memory of its own on which people run llama.cpp with such weights."""
    device = platform.device(name)
    return device.kind == "gpu" and platform.has_own_memory(name) and splits_layers(device, weights)


def partial_offload(plan: "PlatformPlan") -> PartialOffload | None:
    """Return the split of a target over cards that cannot hold it and a CPU; None if nothing gains."""
    found = best_split(plan.question, plan.ranking, plan.profile.round_overhead_s)
    if found is None or found.tpot_s >= plan.recommended.tpot_s:
        return None
    return replace(found, plain_tpot_s=min(found.plain_tpot_s, plan.plain.tpot_s))


def best_split(
    question: Question, ranking: Iterable["PlannedSchedule"], round_overhead_s: float
) -> PartialOffload | None:
    """Return the split with the fastest of some schedules, which are planned elsewhere; None where there is none.

    Plain decoding has the room of the draft for more layers.
    """
    ways = list(_ways(question, ranking, round_overhead_s))
    if not ways:
        return None
    best_s, split, best = min(ways, key=lambda way: way[0])
    drafting_s = [time_s for time_s, _, one in ways if one.num_speculative_tokens]
    command = _command(question, split, best)
    if command is None:
        return None
    return PartialOffload(
        layers=split.layers,
        cpu=split.cpu,
        of_layers=split.of_layers,
        num_apart=len(split.apart),
        plain_tpot_s=min((time_s for time_s, _, one in ways if not one.num_speculative_tokens), default=inf),
        num_drafted=best.num_speculative_tokens,
        tpot_s=best_s,
        drafting_tpot_s=min(drafting_s, default=None),
        options=command,
        place=str(split),
        weights=question.target.weights,
    )


def _command(question: Question, split: LayerSplit, schedule: Schedule) -> str | None:
    """Return llama.cpp's command for a schedule; None where it has none."""
    cards = tuple(split.layers)
    platform = question.platform.model_copy(update={"groups": {_CARDS: cards}})
    lane = _CARDS if len(cards) > 1 else cards[0]
    there = schedule.model_copy(update={"target_lane": lane, "draft_lane": schedule.draft_lane and split.home})
    engines = runs_on(
        platform,
        LanePair(lane, split.home or lane, in_turn=True),
        there,
        (question.target,),
        drafting_head(question.draft),
    )
    found = next((one.options for one in engines if one.engine == _ENGINE), None)
    return found and found.replace(SPLIT_TENSORS, "").replace("TARGET.gguf", f"TARGET.gguf {split.options}", 1)


def pass_s(question: Question, split: LayerSplit, rows: int) -> float:
    """Return the seconds of a pass of the target over so many rows; states cross to experts on the CPU and back."""
    cards, context = list(split.layers), float(question.record.contexts.start)
    platform, costs = question.platform, _costs(question, [split.cpu, *cards])
    counts = {split.cpu: split.num_left} | dict(split.layers)
    layers_s = sum(count * costs[lane].one(LAYER, rows, context) for lane, count in counts.items())
    states_bytes = rows * question.target.shape.width * _STATE_BYTES
    crossing_s = sum(platform.transfer_s(*hop, states_bytes) for hop in pairwise([split.cpu, *cards]))
    for card, count in split.apart_on.items():
        on_cpu_s, on_card_s = (_experts_s(question, costs[lane], rows) for lane in (split.cpu, card))
        there_s, back_s = (platform.transfer_s(*way, states_bytes) for way in ((card, split.cpu), (split.cpu, card)))
        layers_s += count * (on_cpu_s - on_card_s)
        crossing_s += count * (there_s + back_s)
    return layers_s + costs[cards[-1]].one(LM_HEAD, rows, context) + crossing_s


def _experts_s(question: Question, cost: RooflineCost, rows: int) -> float:
    """Return the seconds of the experts of a layer that has any: of a mean layer without a cache, their share of bytes.

    Nothing was measured of experts alone.
    """
    shape = question.target.shape
    share = shape.expert_bytes(question.target.weights, rows) / cost.shared(LAYER, rows).num_bytes
    return cost.one(LAYER, rows, 0.0) * share / shape.expert_share


def _ways(
    question: Question, ranking: Iterable["PlannedSchedule"], round_overhead_s: float
) -> Iterator[tuple[float, LayerSplit, Schedule]]:
    """Yield seconds per token of plain decoding and of chains in turn, their splits, and schedules of other places."""
    head, context = question.draft.head, float(question.record.contexts.start)
    alone, split = (layer_split(question, has_draft=has_draft) for has_draft in (False, True))
    home = None if split is None or split.home is None else _costs(question, [split.home])[split.home]
    step_s = 0.0 if home is None or head in IN_ONE_PASS else home.one(DRAFT_STEP, 1, context)
    for one in ranking:
        schedule = one.schedule
        if not schedule.num_speculative_tokens and alone is not None:
            yield pass_s(question, alone, 1), alone, schedule
        is_chain = schedule.num_rows == schedule.num_speculative_tokens + 1 and not schedule.draft_streams
        is_drafted = schedule.num_speculative_tokens > 0 and is_chain and not schedule.traits.overlaps
        if not is_drafted or one.needs_training or head in IN_ONE_PASS.keys() - {LOOKUP}:
            continue
        if split is None or home is None:
            continue
        drafting_s = 0.0 if head == LOOKUP else schedule.fewest_draft_steps * step_s
        if question.draft.reads_verified_rows:
            drafting_s += home.one(DRAFT_READS, schedule.num_rows, context)
        round_s = pass_s(question, split, schedule.num_rows) + drafting_s + round_overhead_s
        yield round_s / one.prediction.mean_acceptance_length, split, schedule
