"""Whether the models fit into the memories of a platform's devices, before anything runs, and where they do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from decoding.errors import PlanError
from hwprofiles.platform import Platform
from planner.platform_plan.device_pairs import LanePair, lane_pairs, usable_lanes
from planner.platform_plan.question import Question
from planner.platform_plan.schedules import most_branch_tokens
from sim.derived.assumption import Assumption
from sim.derived.roofline import StoredModel

USABLE: Final = Assumption.of(
    "memory.usable_share",
    0.9,
    "guessed",
    "the rest is taken by the system, code and buffers",
    span=(0.75, 0.95),
)
USABLE_OF_A_CARD: Final = Assumption.of(
    "memory.usable_share",
    0.96,
    "guessed",
    "a card sold with 24 GB has 24 GiB, 7 % more; code and buffers take a tenth of it, and the system none",
    span=(0.85, 1.02),
)
_USUAL_WEIGHTS: Final = ("bf16", "int8", "q6_k", "int4")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """What one memory has to hold, and what it can.

    Attributes:
        pair: the placement; of plain decoding the target's lane twice.
        is_plain: whether the target is alone there.
        memory: name of the pool, or of the device that has its own.
        weights_bytes: of both models' shares there.
        kv_bytes: keys and values of the whole context, of both models.
        branches_bytes: keys and values of the branches that a draft prepares.
        capacity_bytes: of which programs may use; None if nobody says.
    """

    pair: LanePair
    is_plain: bool = False
    memory: str
    weights_bytes: float
    kv_bytes: float
    branches_bytes: float
    capacity_bytes: float | None

    @property
    def needed_bytes(self) -> float:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.branches_bytes

    @property
    def fits(self) -> bool:
        """Whether there is room, as far as anybody knows."""
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    @property
    def place(self) -> str:
        """Who is where."""
        return f"plain decoding on {self.pair.target}" if self.is_plain else str(self.pair)

    @property
    def in_words(self) -> str:
        """A sentence with the numbers."""
        parts = {"weights": self.weights_bytes, "keys and values": self.kv_bytes, "branches": self.branches_bytes}
        named = " + ".join(f"{size / 1e9:.1f} GB {name}" for name, size in parts.items() if size)
        need = f"{self.place}: {self.memory} has to hold {self.needed_bytes / 1e9:.1f} GB ({named})"
        if self.capacity_bytes is None:
            return f"{need}; nobody says how much it holds."
        return f"{need}; {self.capacity_bytes / 1e9:.1f} GB are usable{'' if self.fits else ': too little'}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """What fits.

    Attributes:
        alone: lanes whose memories hold the target.
        pairs: placements whose memories hold both models.
        needs: what every memory that was asked about has to hold.
        left_out: what does not fit or cannot be told, in words.
    """

    alone: tuple[str, ...]
    pairs: tuple[LanePair, ...]
    needs: tuple[MemoryNeed, ...]
    left_out: tuple[str, ...]

    @property
    def lanes(self) -> list[str]:
        """All lanes that something may run on."""
        return list(dict.fromkeys([lane for pair in self.pairs for lane in pair[:2]] + [*self.alone]))


def places_of(question: Question) -> Places:
    """Return all different places; none of them is looked for where another one is equal to it.

    Raises:
        PlanError: the target fits nowhere; says what is missing.
    """
    longest = max(prompt.prompt_length for prompt in question.record.prompts)
    usable, left_out = usable_lanes(question.platform, longest)
    candidates = [
        pair for pair in lane_pairs(question.platform, usable) if question.draft.head is None or pair.is_pooled
    ]
    needs: list[MemoryNeed] = []

    def fits(found: list[MemoryNeed]) -> bool:
        needs.extend(found)
        misfits = [need.in_words for need in found if not need.fits]
        left_out.extend(misfits[:1])  # the members of a group need the same
        return not misfits

    lanes = [LanePair(lane, lane, in_turn=True) for lane in dict.fromkeys(pair.target for pair in candidates)]
    alone = [pair.target for pair in lanes if fits(needs_of(question, pair, alone=True))]
    if not alone:
        reasons = " ".join(f"{reason.rstrip('.')}." for reason in left_out)
        narrower = {pair.target: weights_that_fit(question, pair.target) for pair in lanes}
        advice = next(
            (f" --weights {weights[0]} would fit on {lane}." for lane, weights in narrower.items() if weights), ""
        )
        raise PlanError(f"{question.target} fits nowhere on {question.platform.name}: {reasons}{advice}")
    pairs = [pair for pair in candidates if pair.target in alone and fits(needs_of(question, pair))]
    return Places(alone=tuple(alone), pairs=tuple(pairs), needs=tuple(needs), left_out=tuple(left_out))


def weights_that_fit(question: Question, lane: str) -> list[str]:
    """Return in which of the usual weights a lane's memories hold the target, the widest first."""
    pair = LanePair(lane, lane, in_turn=True)
    stored = {one: replace(question, target=replace(question.target, weights=one)) for one in _USUAL_WEIGHTS}
    return [one for one, asked in stored.items() if all(need.fits for need in needs_of(asked, pair, alone=True))]


def needs_of(question: Question, pair: LanePair, *, num_sequences: int = 1, alone: bool = False) -> list[MemoryNeed]:
    """What each memory of a placement has to hold for so many sequences at once, each with all branches it may have.

    With `alone` it is the target's only.
    """
    return memory_needs(
        question.platform,
        pair,
        question.target,
        None if alone else question.draft,
        num_tokens=question.num_tokens,
        num_sequences=num_sequences,
        num_branches=num_sequences * most_branch_tokens(),
    )


def memory_needs(
    platform: Platform,
    pair: LanePair,
    target: StoredModel,
    draft: StoredModel | None,
    *,
    num_tokens: int,
    num_branches: int,
    num_sequences: int = 1,
) -> list[MemoryNeed]:
    """Return what each memory of a placement has to hold.

    Args:
        platform: the machine.
        pair: the placement.
        target: the larger model; a group's devices hold equal shares of it.
        draft: the smaller one, likewise; None where the target is alone.
        num_tokens: of the longest context, branches left out.
        num_branches: tokens of all branches together.
        num_sequences: contexts of that length, which have caches of their own.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    kv: defaultdict[str, float] = defaultdict(float)
    branches: defaultdict[str, float] = defaultdict(float)
    for lane, model in ((pair.target, target), (pair.draft, draft)):
        if model is None:
            continue
        members = platform.members(lane)
        for member in members:
            memory, _ = platform.pool_of(member)
            weights[memory] += model.shape.weight_bytes(model.weights) / len(members)
            kv[memory] += num_sequences * model.kv_bytes(num_tokens) / len(members)
            if model is draft and not pair.in_turn:
                branches[memory] += num_branches * model.kv_bytes_per_token() / len(members)
    return [
        MemoryNeed(
            pair=pair,
            is_plain=draft is None,
            memory=memory,
            weights_bytes=num_bytes,
            kv_bytes=kv[memory],
            branches_bytes=branches[memory],
            capacity_bytes=_capacity(platform, memory),
        )
        for memory, num_bytes in weights.items()
    ]


def _capacity(platform: Platform, memory: str) -> float | None:
    shared = platform.memory_pools.get(memory)
    found = platform.pool_of(memory)[1] if shared is None else shared
    usable = USABLE_OF_A_CARD if shared is None and platform.device(memory).kind == "gpu" else USABLE
    return None if found.memory_bytes is None else found.memory_bytes.value * usable.value
