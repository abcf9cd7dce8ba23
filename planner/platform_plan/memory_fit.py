"""The lanes and placements whose memories hold the models."""

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
_LIMIT_OF_A_MAC: Final = " by macOS's default, which `sysctl iogpu.wired_limit_mb` raises"
_USUAL_WEIGHTS: Final = ("bf16", "int8", "q6_k", "int4", "q3_k_m", "q2_k")
_USUAL_OF_VLLM: Final = ("bf16", "fp8", "awq-int4")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """What one memory has to hold for a placement.

    Attributes:
        pair: the placement.
        is_plain: whether the target decodes there without a draft.
        memory: name of the pool, or of the device that has its own.
        weights_bytes: both models' shares.
        kv_bytes: keys and values of the whole context, of both models.
        branches_bytes: keys and values of the branches that a draft prepares.
        capacity_bytes: what programs may use; None if not known.
        limit: what sets it if not the memory's size, in words.
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
    """Lanes that hold the target `alone`, placements (`pairs`) that hold both models, and what was left out, and why.

    `needs` says for all of them, left out or not, what each memory has to hold.
    """

    alone: tuple[str, ...]
    pairs: tuple[LanePair, ...]
    needs: tuple[MemoryNeed, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def lanes(self) -> list[str]:
        """All lanes of what fits."""
        return list(dict.fromkeys([lane for pair in self.pairs for lane in pair[:2]] + [*self.alone]))

    def without_equal(self, machine: DerivedProfile, platform: Platform) -> tuple["Places", dict[LanePair, LanePair]]:
        """Return the places without pairs that differ in names alone, and which pair each of these is equal to.

        Lanes of the target `alone`, which are pairs too, all stay: a pair may need one that is equal to another.
        """
        pairs = dict.fromkeys((*map(LanePair.alone, self.alone), *self.pairs))
        equal = equal_pairs(platform, machine, pairs)
        return replace(self, pairs=tuple(pair for pair in self.pairs if pair not in equal)), equal


def places_of(question: Question) -> Places:
    """Return where the models of a question fit; of equal placements one.

    Raises:
        PlanError: the target fits nowhere; says what is missing.
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
        too_large.extend(misfits[:1])  # the members of a group need the same
        return not misfits

    lanes = list(dict.fromkeys(pair.target for pair in candidates))
    alone = [lane for lane in (*lanes, *split_lanes) if fits(needs_of(question, LanePair.alone(lane), alone=True))]
    if not alone:
        reasons = " ".join(_by_reason(unusable, too_large))
        cpus = [name for name, device in question.platform.devices.items() if device.kind == "cpu"]
        fitting = {lane: weights_that_fit(question, lane) for lane in sorted(lanes, key=lambda lane: lane in cpus)}
        widest = {found[0]: lane for lane, found in reversed(fitting.items()) if found}  # of equal ones the first lane
        told = [f"--weights {one} would fit on {widest[one]}" for one in sorted(widest, key=_bits, reverse=True)]
        told += split_by_llama_cpp(question)
        advice = f" {', '.join(told)}." if told else ""
        raise PlanError(f"{question.target} fits nowhere on {question.platform.name}: {reasons}{advice}")
    pairs = [pair for pair in candidates if pair.target in alone]
    pairs = [pair for pair in (*pairs, *split_pairs) if fits(needs_of(question, pair))]
    left_out = (*unusable, *(LeftOut(need.place, need.needed_in_words) for need in too_large))
    return Places(alone=tuple(alone), pairs=tuple(pairs), needs=tuple(needs), left_out=left_out)


def split_by_llama_cpp(question: Question) -> list[str]:
    """Return in words how llama.cpp would split a target over card and CPU where another engine is planned with."""
    gpus = [one for one in question.platform.devices.values() if one.kind == "gpu"]
    is_able = reads(ANYWHERE, question.target.weights) and all(can_run(one, ANYWHERE) for one in gpus)
    if not is_able or layer_split(question, has_draft=False) is not None:
        return []
    by_it = replace(question, platform=platform_run_by(question.platform, ANYWHERE))
    split = layer_split(by_it, has_draft=False)
    return [] if split is None else [f"--engine {ANYWHERE} would have {in_words(split)}"]


def _by_reason(unusable: Iterable[LeftOut], too_large: Iterable[MemoryNeed]) -> Iterator[str]:
    """Yield why lanes hold no target, once for all that have one reason: devices that share a memory share it."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for one in unusable:
        found["", one.why].append(one.place)
    for need in too_large:
        found[need.memory, need.needed_in_words].append(need.pair.target)
    yield from (_told(places, memory, why) for (memory, why), places in found.items())


def _told(places: list[str], memory: str, why: str) -> str:
    """Return a reason and where it holds, which it says itself where that is the memory it begins with."""
    whole = why if listing(places) == memory else f"{listing(places)}: {why}"
    return f"{whole.rstrip('.')}."


def weights_that_fit(question: Question, lane: str) -> list[str]:
    """Return the usual formats of a lane's engine in which its memories hold the target, the widest first."""
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


def needs_of(question: Question, pair: LanePair, *, num_sequences: int = 1, alone: bool = False) -> list[MemoryNeed]:
    """Return what each memory of a placement has to hold for `num_sequences`, each with all branches it may have.

    A group's devices hold equal shares of a model's weights, and of its caches what `ModelShape.kv_bytes` says; those
    of a split have what its name tells, and their host the embeddings. With `alone` there is no draft.
    """
    platform = question.platform
    weights: defaultdict[str, float] = defaultdict(float)
    kv: defaultdict[str, float] = defaultdict(float)
    branches: defaultdict[str, float] = defaultdict(float)
    on_macs: defaultdict[str, float] = defaultdict(float)
    held = [_held_by(question, pair.target, question.target)]
    held += [] if alone else [_held_by(question, pair.draft, question.draft)]
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


def _held_by(question: Question, lane: str, model: StoredModel) -> Mapping[str, tuple[float, float]]:
    """Return the bytes of a model's weights, and of one sequence's cache, on each device of its lane and its host."""
    members, split = question.platform.members(lane), LayerSplit.of(lane)
    if split is not None:
        if model is question.target:
            return held_by(question, split)
        members = (split.last,)
    host = host_of(question, members)
    weights_bytes = model.shape.weight_bytes(model.weights) if host is None else bytes_on_cards(model)
    kv_bytes = model.kv_bytes(question.num_tokens, len(members))
    held = dict.fromkeys(members, (weights_bytes / len(members), kv_bytes))
    return held if host is None else held | {host: (table_bytes(model), 0.0)}


def _capacity(platform: Platform, memory: str, needed: float, on_mac: float) -> dict[str, Any]:
    """Return the capacity of a memory and its limit as fields of `MemoryNeed`; `on_mac` is for a GPU of Apple's."""
    usable, pool = usable_bytes(platform, memory), platform.memory_pools.get(memory)
    if on_mac and usable is not None and pool is not None and pool.memory_bytes is not None:
        size = pool.memory_bytes.value
        of_gpu = next((size * share.value for most, share in _SMALL_MACS.items() if size <= most * 1e9), usable)
        limited = of_gpu + needed - on_mac  # what other devices hold beside it
        if limited < usable:
            return {"capacity_bytes": limited, "limit": _LIMIT_OF_A_MAC}
    return {"capacity_bytes": usable}
