"""Places of a target that no card holds alone: some layers on each, the rest on the CPU, as llama.cpp splits them.

Of a mixture all layers are on cards, but for the experts of as many as have to be on the CPU. A draft, which works in
turn with them, has room on a card, so that fewer layers are there than without it.
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
    """Return the lanes of the target alone, and the placements with its draft, at most one of each.

    Cards hold as much as they can beside the caches of so many sequences. There is none where one card holds all.
    """
    alone, beside = (layer_split(question, has_draft=one, num_sequences=num_sequences) for one in (False, True))
    lanes = [] if alone is None else [alone.lane]
    if beside is None:
        return lanes, []
    if question.draft.head is not None:
        return lanes, [LanePair.alone(beside.lane)]
    return lanes, [LanePair(beside.lane, _home(question, [*beside.layers]), in_turn=True)]


def layer_split(question: Question, *, has_draft: bool, num_sequences: int = 1) -> LayerSplit | None:
    """Return as much of a target as cards hold, beside the draft or alone, and the rest on the fastest CPU with room.

    Cards that are slower than that CPU are left out. A head in the target's file is always there.
    """
    platform, weights = question.platform, question.target.weights
    lanes = [name for name in usable_lanes(platform)[0] if name in platform.devices]
    cards = [name for name in lanes if _is_card(platform, name, weights)]
    cpus = [name for name in lanes if platform.device(name).kind == "cpu"] if cards else []
    by_speed = _by_speed(question, [*cards, *cpus])
    load = _Load(question, has_draft or question.draft.is_in_target, num_sequences)
    for place, cpu in enumerate(by_speed):
        faster = [card for card in by_speed[:place] if card in cards]
        if cpu in cpus and faster and (split := load.split(faster, cpu)) is not None:
            return split
    return None


class _Load(NamedTuple):
    """What cards have to hold: a target, perhaps its draft, and the caches of so many sequences."""

    question: Question
    has_draft: bool
    num_sequences: int

    def split(self, cards: Sequence[str], cpu: str) -> LayerSplit | None:
        """Return the split over some of the cards and a CPU; None where that has no room, or a card holds all."""
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
        """Return how many layers each card gets if the first is filled first; those that would get none are left out.

        The first `num_light` layers have no experts there.
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
        """Return the bytes that cards have for layers, beside the draft, if one has it, and the `lm_head`."""
        question, draft = self.question, self.question.draft
        rooms = {card: usable_bytes(question.platform, card) or 0.0 for card in cards}
        if self.has_draft:
            kv_bytes = self.num_sequences * draft.kv_bytes(question.num_tokens)
            rooms[_home(question, cards)] -= bytes_on_cards(draft) + kv_bytes
        rooms[cards[-1]] -= question.target.head_bytes
        return rooms


def held_by(question: Question, split: LayerSplit) -> Mapping[str, tuple[float, float]]:
    """Return the bytes of the target's weights and of one sequence's cache on each device, and on `host_of` them."""
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
    """Return the CPU in whose memory llama.cpp keeps the embeddings of a model on cards; None of other devices.

    Its `dev_input` is the CPU, whatever else is where (`src/llama-model.cpp`). None of a CPU whose memory is not known.
    """
    platform, weights = question.platform, question.target.weights
    if not all(_is_card(platform, one, weights) for one in devices):
        return None
    pooled = {one for pool in platform.memory_pools.values() for one in pool.devices}
    named = [platform.host, *platform.devices] if platform.host else [*platform.devices]
    cpus = (name for name in named if platform.device(name).kind == "cpu")
    return next((one for one in cpus if one in pooled or platform.device(one).memory_bytes_per_s is not None), None)


def table_bytes(model: StoredModel) -> float:
    """Return the bytes of a model's embeddings, of which tokens' are the `lm_head` where these are tied."""
    is_tied = model.head is None and model.shape.tie_embeddings
    return model.shape.table_bytes(model.weights) + (model.head_bytes if is_tied else 0.0)


def bytes_on_cards(model: StoredModel) -> float:
    """Return the bytes of a model on cards, beside `host_of` them; embeddings that are the `lm_head` are there, too."""
    return model.shape.weight_bytes(model.weights) - model.shape.table_bytes(model.weights)


def _layer_bytes(question: Question) -> tuple[float, float]:
    """Return the bytes of a layer without experts, and those of the experts of a layer that has any."""
    target, shape = question.target, question.target.shape
    expert_bytes = shape.expert_bytes(target.weights)
    return shape.layer_weight_bytes(target.weights, inf) - expert_bytes, expert_bytes / shape.expert_share


def _home(question: Question, cards: Sequence[str]) -> str:
    """Return the card of the draft, of some with the fastest first: a head is beside the `lm_head`."""
    return cards[-1] if question.draft.head is not None else cards[0]


def _by_speed(question: Question, lanes: Sequence[str]) -> list[str]:
    demand, context = demand_of(question, lanes), float(question.record.contexts.start)
    costs = {lane: lane_cost(question.platform, demand, lane) for lane in lanes}
    return sorted(lanes, key=lambda lane: costs[lane].one(LAYER, 1, context))


def _is_card(platform: Platform, name: str, weights: str) -> bool:
    """Return whether it is a GPU with memory of its own on which people run llama.cpp with such weights."""
    device = platform.device(name)
    return device.kind == "gpu" and platform.has_own_memory(name) and splits_layers(device, weights)


def in_words(split: LayerSplit) -> str:
    """Return where the layers of a target are."""
    (first, count), *others = split.layers.items()
    places = [f"{count} of {split.num_layers} layers on {first}", *(f"{more} on {card}" for card, more in others)]
    places += [f"the rest on {split.cpu}"] * (split.num_left > 0)
    return listing([*places, *[f"the experts of {split.num_apart} on {split.cpu}"] * (split.num_apart > 0)])
