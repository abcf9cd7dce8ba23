"""Whether the models of a placement fit into the memories of their devices, before anything runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from hwprofiles.platform import Platform
from planner.platform_plan.device_pairs import LanePair
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """What one memory has to hold, and what it can.

    Attributes:
        pair: the placement.
        memory: name of the pool, or of the device that has its own.
        weights_bytes: of both models' shares there.
        kv_bytes: keys and values of the whole context, of both models.
        branches_bytes: keys and values of the branches that a draft prepares.
        capacity_bytes: of which programs may use; None if nobody says.
    """

    pair: LanePair
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
    def in_words(self) -> str:
        """A sentence with the numbers."""
        parts = {"weights": self.weights_bytes, "keys and values": self.kv_bytes, "branches": self.branches_bytes}
        named = " + ".join(f"{num_bytes / 1e9:.1f} GB {name}" for name, num_bytes in parts.items() if num_bytes)
        need = f"{self.pair}: {self.memory} has to hold {self.needed_bytes / 1e9:.1f} GB ({named})"
        if self.capacity_bytes is None:
            return f"{need}; nobody says how much it holds."
        return f"{need}; {self.capacity_bytes / 1e9:.1f} GB are usable{'' if self.fits else ': too little'}."


def needs_of(question: Question, pair: LanePair, *, num_sequences: int = 1) -> list[MemoryNeed]:
    """What each memory of a placement has to hold for so many sequences at once, each with all branches it may have."""
    return memory_needs(
        question.platform,
        pair,
        question.target,
        question.draft,
        num_tokens=num_sequences * question.num_tokens,
        num_branches=num_sequences * most_branch_tokens(),
    )


def memory_needs(
    platform: Platform, pair: LanePair, target: StoredModel, draft: StoredModel, *, num_tokens: int, num_branches: int
) -> list[MemoryNeed]:
    """What each memory of a placement has to hold.

    Args:
        platform: the machine.
        pair: the placement.
        target: the larger model; a group's devices hold equal shares of it.
        draft: the smaller one, likewise.
        num_tokens: of the longest context, branches left out.
        num_branches: tokens of all branches together.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    kv: defaultdict[str, float] = defaultdict(float)
    branches: defaultdict[str, float] = defaultdict(float)
    for lane, model in ((pair.target, target), (pair.draft, draft)):
        members = platform.members(lane)
        for member in members:
            memory, _ = platform.pool_of(member)
            weights[memory] += model.shape.weight_bytes(model.weights) / len(members)
            kv[memory] += num_tokens * model.shape.kv_bytes_per_token() / len(members)
            if model is draft and not pair.in_turn:
                branches[memory] += num_branches * model.shape.kv_bytes_per_token() / len(members)
    return [
        MemoryNeed(
            pair=pair,
            memory=memory,
            weights_bytes=num_bytes,
            kv_bytes=kv[memory],
            branches_bytes=branches[memory],
            capacity_bytes=_capacity(platform, memory),
        )
        for memory, num_bytes in weights.items()
    ]


def _capacity(platform: Platform, memory: str) -> float | None:
    found = platform.memory_pools[memory] if memory in platform.memory_pools else platform.pool_of(memory)[1]
    return None if found.memory_bytes is None else found.memory_bytes.value * USABLE.value
