"""Splits a target that no single card can hold: some layers on each card, the rest on the CPU, as in llama.cpp.

Of a mixture of experts, all layers are on cards, but the experts of as few layers as possible are on the CPU. A draft
takes turns with the target and occupies part of a card, which then holds fewer layers.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from costs.round_plan import LAYER
from hwprofiles.engines import splits_layers
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform import Platform
from planner.platform_plan.device_pairs import LanePair, usable_bytes, usable_lanes
from planner.platform_plan.question import Question, demand_of
from planner.wording import listing
from sim.derived.derived_profile import lane_cost
from sim.derived.roofline import StoredModel


def split_places(question: Question, num_sequences: int = 1) -> tuple[list[str], list[LanePair]]:
    """Return the layer splits of the target as a lane without a draft, and as a placement with it; at most one of each.

    Cards hold as much as fits beside the caches of `num_sequences`. There is no split where one card holds everything.
    """
    alone, beside = (layer_split(question, has_draft=one, num_sequences=num_sequences) for one in (False, True))
    lanes = [] if alone is None else [alone.lane]
    if beside is None:
        return lanes, []
    if question.draft.head is not None:
        return lanes, [LanePair.alone(beside.lane)]
    return lanes, [LanePair(beside.lane, _home(question, [*beside.layers]), in_turn=True)]


def layer_split(question: Question, *, has_draft: bool, num_sequences: int = 1) -> LayerSplit | None:
    """Return the split with as much of a target on cards as they hold, and the rest on the fastest CPU with room.

    Cards slower than that CPU are left out. A head that is part of the target's file takes room even without a draft.
    """
    platform, weights = question.platform, question.target.weights
    lanes = [name for name in usable_lanes(platform)[0] if name in platform.devices]
    cards = [name for name in lanes if _is_card(platform, name, weights)]
    cpus = [name for name in lanes if platform.device(name).kind == "cpu"] if cards else []
    by_speed = _by_speed(question, [*cards, *cpus])
    load = _Load(question, has_draft or question.draft.is_in_target, num_sequences)
    for place, cpu in enumerate(by_speed):
        faster = [card for card in by_speed[:place] if card in cards]
        split = load.split(faster, cpu) if cpu in cpus and faster else None
        if split is not None:
            return split
    return None


class _Load(NamedTuple):
    """What cards have to hold: a target, perhaps its draft, and the caches of `num_sequences`."""

    question: Question
    has_draft: bool
    num_sequences: int

    def split(self, cards: Sequence[str], cpu: str) -> LayerSplit | None:
        """Return the split over some of the cards and a CPU; None if the CPU lacks room, or a card holds everything."""
        shape, layers, stop = self.question.target.shape, dict[str, int](), 0
        for stop in range(shape.dense_layers, shape.num_layers + 1) if shape.num_experts else range(1):
            layers = self._filled(cards, stop)
            if sum(layers.values()) == shape.num_layers:
                break
        num_left = shape.num_layers - sum(layers.values())
        split = LayerSplit(layers, cpu, num_left, max(0, stop - max(num_left, shape.dense_layers)))
        if not layers or not self._has_room(split, cpu):
            return None
        if num_left or split.num_apart:
            return split
        return split._replace(cpu=None) if len(layers) > 1 else None

    def _has_room(self, split: LayerSplit, cpu: str) -> bool:
        weights_bytes, kv_bytes = held_by(self.question, split)[cpu]
        usable = usable_bytes(self.question.platform, self.question.platform.room_of(cpu))
        return usable is None or weights_bytes + self.num_sequences * kv_bytes <= usable

    def _filled(self, cards: Sequence[str], num_light: int) -> dict[str, int]:
        """Return how many layers each card gets, filling the first card first; cards that get none are left out.

        The experts of the first `num_light` layers are not on the cards.
        """
        if not cards:
            return {}
        rooms, layers = self._rooms(cards), dict.fromkeys(cards, 0)
        layer_bytes, expert_bytes = _layer_bytes(self.question)
        target = self.question.target
        layer_bytes += self.num_sequences * target.kv_bytes(self.question.num_tokens) / target.shape.num_layers
        left = [num_light, target.shape.num_layers - num_light]
        for card in cards:
            for place, num_bytes in enumerate((layer_bytes, layer_bytes + expert_bytes)):
                count = max(0, min(left[place], int(rooms[card] / num_bytes)))
                layers[card] += count
                rooms[card] -= count * num_bytes
                left[place] -= count
        filled = [card for card in cards if layers[card]]
        return layers if len(filled) == len(cards) else self._filled(filled, num_light)

    def _rooms(self, cards: Sequence[str]) -> dict[str, float]:
        """Return the bytes that each card has for layers, beside the `lm_head` and the draft."""
        question, draft = self.question, self.question.draft
        rooms = {card: usable_bytes(question.platform, card) or 0.0 for card in cards}
        if self.has_draft:
            kv_bytes = self.num_sequences * draft.kv_bytes(question.num_tokens)
            rooms[_home(question, cards)] -= bytes_on_cards(draft) + kv_bytes
        rooms[cards[-1]] -= question.target.head_bytes
        return rooms


def held_by(question: Question, split: LayerSplit) -> Mapping[str, tuple[float, float]]:
    """Return (weight bytes, cache bytes of one sequence) of the target on each device of a split and on their host."""
    target, shape = question.target, question.target.shape
    layer_bytes, expert_bytes = _layer_bytes(question)
    host = split.cpu or host_of(question, split.devices)
    of_ends = {split.last: target.head_bytes} | ({} if host is None else {host: table_bytes(target)})
    kv_bytes, experts = target.kv_bytes(question.num_tokens) / shape.num_layers, split.experts_on(shape.dense_layers)
    counts = {device: split.layers.get(device, split.num_left) for device in split.devices}
    return {
        device: (
            counts.get(device, 0) * layer_bytes + experts.get(device, 0) * expert_bytes + of_ends.get(device, 0.0),
            counts.get(device, 0) * kv_bytes,
        )
        for device in dict.fromkeys([*counts, *of_ends])
    }


def host_of(question: Question, devices: Sequence[str]) -> str | None:
    """Return the CPU in whose memory llama.cpp keeps the embeddings of a model on cards.

    llama.cpp's `dev_input` is always the CPU (`src/llama-model.cpp`). None if a device is no card, or if no CPU with
    known memory is there.
    """
    platform, weights = question.platform, question.target.weights
    if not all(_is_card(platform, one, weights) for one in devices):
        return None
    pooled = {one for pool in platform.memory_pools.values() for one in pool.devices}
    named = [platform.host, *platform.devices] if platform.host else [*platform.devices]
    cpus = (name for name in named if platform.device(name).kind == "cpu")
    return next((one for one in cpus if one in pooled or platform.device(one).memory_bytes_per_s is not None), None)


def table_bytes(model: StoredModel) -> float:
    """Return the bytes of a model's embedding tables; with tied embeddings the `lm_head` is one of them."""
    is_tied = model.head is None and model.shape.tie_embeddings
    return model.shape.table_bytes(model.weights) + (model.head_bytes if is_tied else 0.0)


def bytes_on_cards(model: StoredModel) -> float:
    """Return the bytes of a model on cards if the host has the embeddings; tied ones are on both, as the `lm_head`."""
    return model.shape.weight_bytes(model.weights) - model.shape.table_bytes(model.weights)


def _layer_bytes(question: Question) -> tuple[float, float]:
    """Return the bytes of a layer without its experts, and of the experts of a layer that has any."""
    target, shape = question.target, question.target.shape
    expert_bytes = shape.expert_bytes(target.weights)
    return shape.layer_weight_bytes(target.weights, inf) - expert_bytes, expert_bytes / shape.expert_share


def _home(question: Question, cards: Sequence[str]) -> str:
    """Return the card of the draft: the fastest (first) one; for a draft head the last one, which has the `lm_head`."""
    return cards[-1] if question.draft.head is not None else cards[0]


def _by_speed(question: Question, lanes: Sequence[str]) -> list[str]:
    demand, context = demand_of(question, lanes), float(question.record.contexts.start)
    costs = {lane: lane_cost(question.platform, demand, lane) for lane in lanes}
    return sorted(lanes, key=lambda lane: costs[lane].one(LAYER, 1, context))


def _is_card(platform: Platform, name: str, weights: str) -> bool:
    """Return whether a device is a GPU with its own memory for which a plan may split layers of these weights."""
    device = platform.device(name)
    return device.kind == "gpu" and platform.has_own_memory(name) and splits_layers(device, weights)


def in_words(split: LayerSplit) -> str:
    """Return in words which devices have how many of the target's layers."""
    (first, count), *others = split.layers.items()
    places = [f"{count} of {split.num_layers} layers on {first}", *(f"{more} on {card}" for card, more in others)]
    places += [f"the rest on {split.cpu}"] * (split.num_left > 0)
    return listing([*places, *[f"the experts of {split.num_apart} on {split.cpu}"] * (split.num_apart > 0)])
