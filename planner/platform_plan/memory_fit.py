"""Which lanes and placements have enough memory for the models."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from decoding.errors import PlanError
from hwprofiles.curves.names import engine_of
from hwprofiles.engines import ANYWHERE, LAW_ENGINE, can_run, engine_on, platform_run_by, reads
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform import Platform
from hwprofiles.weights.formats import stored_weights
from planner.platform_plan.device_pairs import LanePair, LeftOut, equal_pairs, lane_pairs, usable_bytes, usable_lanes
from planner.platform_plan.question import Question
from planner.platform_plan.schedules import most_branch_tokens
from planner.platform_plan.split_places import (
    bytes_on_cards,
    held_by,
    host_of,
    in_words,
    layer_split,
    split_places,
    table_bytes,
)
from planner.wording import listing
from sim.derived.assumption import Assumption
from sim.derived.derived_profile import DerivedProfile
from sim.derived.roofline import StoredModel

_SMALL_MACS: Final = {size: Assumption.shipped(f"memory.usable_share/mac {size} GB") for size in (24, 48, 96)}
_LIMIT_OF_A_MAC: Final = " by the default limit of macOS, which `sysctl iogpu.wired_limit_mb` raises"
_USUAL_WEIGHTS: Final = ("bf16", "int8", "q6_k", "int4", "q3_k_m", "q2_k")
_USUAL_OF_VLLM: Final = ("bf16", "fp8", "awq-int4")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """What one memory has to hold for a placement.

    Attributes:
        pair: the placement.
        is_plain: whether the target decodes there without a draft.
        memory: name of the pool, or of the device that has a memory of its own.
        weights_bytes: weights of both models in this memory.
        kv_bytes: keys and values of both models, for the whole context.
        branches_bytes: keys and values of the branches that a draft prepares.
        capacity_bytes: what programs may use; None if not known.
        limit: what limits the capacity if not the memory's size, in words.
    """

    pair: LanePair
    is_plain: bool = False
    memory: str
    weights_bytes: float
    kv_bytes: float
    branches_bytes: float
    capacity_bytes: float | None
    limit: str = ""

    @property
    def needed_bytes(self) -> float:
        """All bytes that the memory has to hold."""
        return self.weights_bytes + self.kv_bytes + self.branches_bytes

    @property
    def fits(self) -> bool:
        """Whether there is room; true where the capacity is not known."""
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    @property
    def place(self) -> str:
        """The lanes of target and draft, in words."""
        return f"plain decoding on {self.pair.target}" if self.is_plain else str(self.pair)

    @property
    def in_words(self) -> str:
        """A sentence with place and numbers."""
        return f"{self.place}: {self.needed_in_words}"

    @property
    def needed_in_words(self) -> str:
        """The numbers, beginning with the memory."""
        parts = {"weights": self.weights_bytes, "keys and values": self.kv_bytes, "branches": self.branches_bytes}
        named = " + ".join(f"{size / 1e9:.1f} GB {name}" for name, size in parts.items() if size)
        need = f"{self.memory} has to hold {self.needed_bytes / 1e9:.1f} GB ({named})"
        if self.capacity_bytes is None:
            return f"{need}; its capacity is unknown."
        usable = f"{self.capacity_bytes / 1e9:.1f} GB are usable{self.limit}"
        return f"{need}; {usable}{'' if self.fits else ': too little'}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where the models fit.

    Attributes:
        alone: lanes that hold the target without a draft.
        pairs: placements that hold both models.
        needs: what each memory has to hold, for every lane and placement, whether it fits or not.
        left_out: lanes and placements that do not fit or cannot be used, and why.
    """

    alone: tuple[str, ...]
    pairs: tuple[LanePair, ...]
    needs: tuple[MemoryNeed, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def lanes(self) -> list[str]:
        """All lanes of the placements that fit."""
        return list(dict.fromkeys([lane for pair in self.pairs for lane in pair[:2]] + [*self.alone]))

    def without_equal(self, machine: DerivedProfile, platform: Platform) -> tuple["Places", dict[LanePair, LanePair]]:
        """Return the places without pairs that equal another one but for names, and the kept pair for each dropped one.

        All lanes of `alone` stay, even equal ones, since a pair that is kept may need its lane.
        """
        pairs = dict.fromkeys((*map(LanePair.alone, self.alone), *self.pairs))
        equal = equal_pairs(platform, machine, pairs)
        return replace(self, pairs=tuple(pair for pair in self.pairs if pair not in equal)), equal


def places_of(question: Question) -> Places:
    """Return where the models of a question fit, with one of each set of equal placements.

    Raises:
        PlanError: the target fits nowhere; the message says what is missing.
    """
    longest = max(prompt.prompt_length for prompt in question.record.prompts)
    usable, unusable = usable_lanes(question.platform, longest)
    candidates = [
        pair for pair in lane_pairs(question.platform, usable) if question.draft.head is None or pair.is_pooled
    ]
    split_lanes, split_pairs = split_places(question)
    needs, too_large = list[MemoryNeed](), list[MemoryNeed]()

    def fits(found: list[MemoryNeed]) -> bool:
        needs.extend(found)
        misfits = [need for need in found if not need.fits]
        too_large.extend(misfits[:1])  # all devices of a group need the same, so one of them is named
        return not misfits

    lanes = list(dict.fromkeys(pair.target for pair in candidates))
    alone = [lane for lane in (*lanes, *split_lanes) if fits(needs_of(question, LanePair.alone(lane), alone=True))]
    if not alone:
        reasons = " ".join(_by_reason(unusable, too_large))
        cpus = [name for name, device in question.platform.devices.items() if device.kind == "cpu"]
        fitting = {lane: weights_that_fit(question, lane) for lane in sorted(lanes, key=lambda lane: lane in cpus)}
        # The widest format that fits on a lane; where several lanes hold the same format, the first one is named.
        widest = {formats[0]: lane for lane, formats in reversed(fitting.items()) if formats}
        ways = [f"--weights {one} would fit on {widest[one]}" for one in sorted(widest, key=_bits, reverse=True)]
        ways += split_by_llama_cpp(question)
        advice = f" {', '.join(ways)}." if ways else ""
        raise PlanError(f"{question.target} fits nowhere on {question.platform.name}: {reasons}{advice}")
    pairs = [pair for pair in candidates if pair.target in alone]
    pairs = [pair for pair in (*pairs, *split_pairs) if fits(needs_of(question, pair))]
    left_out = (*unusable, *(LeftOut(need.place, need.needed_in_words) for need in too_large))
    return Places(alone=tuple(alone), pairs=tuple(pairs), needs=tuple(needs), left_out=left_out)


def split_by_llama_cpp(question: Question) -> list[str]:
    """Return how llama.cpp would split the target over cards and CPU, in words, if the plan is for another engine."""
    gpus = [one for one in question.platform.devices.values() if one.kind == "gpu"]
    is_able = reads(ANYWHERE, question.target.weights) and all(can_run(one, ANYWHERE) for one in gpus)
    if not is_able or layer_split(question, has_draft=False) is not None:
        return []
    by_it = replace(question, platform=platform_run_by(question.platform, ANYWHERE))
    split = layer_split(by_it, has_draft=False)
    return [] if split is None else [f"--engine {ANYWHERE} would have {in_words(split)}"]


def _by_reason(unusable: Iterable[LeftOut], too_large: Iterable[MemoryNeed]) -> Iterator[str]:
    """Yield why lanes cannot hold the target; lanes with the same reason (one shared memory) are named together."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for one in unusable:
        found["", one.why].append(one.place)
    for need in too_large:
        found[need.memory, need.needed_in_words].append(need.pair.target)
    for (memory, why), places in found.items():
        starts_with_place = listing(places) == memory  # the reason begins with the memory's name
        yield f"{why if starts_with_place else f'{listing(places)}: {why}'}".rstrip(".") + "."


def weights_that_fit(question: Question, lane: str) -> list[str]:
    """Return the common weight formats of a lane's engine in which the target fits there, the widest first."""
    engine = engine_on(question.platform.device(question.platform.members(lane)[0]), question.target.weights)
    usual = _USUAL_OF_VLLM if engine_of(engine or "") == LAW_ENGINE else _USUAL_WEIGHTS
    stored = {
        one: replace(question, target=replace(question.target, weights=one))
        for one in usual
        if engine is None or reads(engine, one)
    }
    return [
        one
        for one, asked in stored.items()
        if all(need.fits for need in needs_of(asked, LanePair.alone(lane), alone=True))
    ]


def _bits(weights: str) -> float:
    return stored_weights(weights).bits


def needs_of(
    question: Question, pair: LanePair, *, num_sequences: int = 1, alone: bool = False, has_host: bool = True
) -> list[MemoryNeed]:
    """Return what each memory of a placement has to hold for `num_sequences`, each with the most branches it may have.

    The devices of a group hold equal shares of the weights, and of the caches what `ModelShape.kv_bytes` says. The
    devices of a layer split hold the layers in its name. With `alone` there is no draft. The host of cards holds the
    embeddings, as in llama.cpp; without `has_host` the cards hold them, as in other engines.
    """
    platform = question.platform
    weights: defaultdict[str, float] = defaultdict(float)
    kv: defaultdict[str, float] = defaultdict(float)
    branches: defaultdict[str, float] = defaultdict(float)
    on_macs: defaultdict[str, float] = defaultdict(float)
    held = [_held_by(question, pair.target, question.target, has_host=has_host)]
    held += [] if alone else [_held_by(question, pair.draft, question.draft, has_host=has_host)]
    for place, of_model in enumerate(held):
        for member, (weights_bytes, kv_bytes) in of_model.items():
            memory = platform.room_of(member)
            before = weights[memory] + kv[memory] + branches[memory]
            weights[memory] += weights_bytes
            kv[memory] += num_sequences * kv_bytes
            if place and not pair.in_turn and kv_bytes:
                num_branches = num_sequences * most_branch_tokens()
                draft, num_members = question.draft, sum(kept_bytes > 0 for _, kept_bytes in of_model.values())
                branches[memory] += num_branches * (draft.kv_bytes(1, num_members) - draft.kv_bytes(0, num_members))
            if platform.device(member).kind == "gpu" and platform.device(member).maker == "Apple":
                on_macs[memory] += weights[memory] + kv[memory] + branches[memory] - before
    return [
        MemoryNeed(
            pair=pair,
            is_plain=alone,
            memory=memory,
            weights_bytes=num_bytes,
            kv_bytes=kv[memory],
            branches_bytes=branches[memory],
            **_capacity(platform, memory, num_bytes + kv[memory] + branches[memory], on_macs[memory]),
        )
        for memory, num_bytes in weights.items()
    ]


def _held_by(question: Question, lane: str, model: StoredModel, *, has_host: bool) -> Mapping[str, tuple[float, float]]:
    """Return (weight bytes, cache bytes of one sequence) of a model on each device of its lane and on their host."""
    members, split = question.platform.members(lane), LayerSplit.of(lane)
    if split is not None:
        if model is question.target:
            return held_by(question, split)
        members = (split.last,)
    host = host_of(question, members) if has_host else None
    weights_bytes = model.shape.weight_bytes(model.weights) if host is None else bytes_on_cards(model)
    kv_bytes = model.kv_bytes(question.num_tokens, len(members))
    held = dict.fromkeys(members, (weights_bytes / len(members), kv_bytes))
    return held if host is None else held | {host: (table_bytes(model), 0.0)}


def _capacity(platform: Platform, memory: str, needed: float, on_mac: float) -> dict[str, Any]:
    """Return `capacity_bytes` and `limit` of `MemoryNeed`; `on_mac` of the `needed` bytes are an Apple GPU's."""
    usable, pool = usable_bytes(platform, memory), platform.memory_pools.get(memory)
    if on_mac and usable is not None and pool is not None and pool.memory_bytes is not None:
        size = pool.memory_bytes.value
        of_gpu = next((size * share.value for most, share in _SMALL_MACS.items() if size <= most * 1e9), usable)
        limited = of_gpu + needed - on_mac  # the limit of macOS does not count what other devices hold
        if limited < usable:
            return {"capacity_bytes": limited, "limit": _LIMIT_OF_A_MAC}
    return {"capacity_bytes": usable}
