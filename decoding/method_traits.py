"""What is true of a decoding method whatever its settings: one frozen description next to every generator.

Other code reads these facts and never compares names, so a new method is one generator and one description.
"""

from dataclasses import dataclass
from typing import Literal

from decoding.lanes import MethodFunction

_Drafting = Literal["nobody", "draft", "head", "text", "target"]
"""Who drafts: nobody; the pair's draft model; a head that reads the target's hidden states; a lookup in the sequence so
far; or the target in its own pass. `draft`, `head` and `text` draft in a lane, which may be the target's."""

WindowKind = Literal["none", "chain", "static tree", "dynamic tree"]
"""What is verified: nothing but the next token; tokens in a row; a tree of one shape; a tree that follows the draft's
own probabilities."""

Verification = Literal["greedy", "match", "ratio", "one-hot", "typical"]
"""Rules by which a drafted token is accepted (`runtime.verification.rules`); `typical` alone is lossy.

greedy: it is the target's best token. match: it is the target's own sample. ratio: rejection sampling, with the ratio
of the two models' probabilities (Leviathan). one-hot: the same for drafts that are no samples, so that the draft's
probability counts as 1. typical: the target gives it enough probability (Medusa).
"""

CHAIN_RULES: tuple[Verification, ...] = ("greedy", "match", "ratio")
TREE_RULES: tuple[Verification, ...] = ("greedy", "match", "one-hot", "typical")


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodTraits:
    """A decoding method: its generator, and the facts that simulation, search and runtime need.

    Attributes:
        name, title: its id in schedules, and its name for people.
        flow: the generator.
        drafts: who drafts.
        window: what is verified.
        rules: verification rules for its windows; all but `typical` keep the target's distribution.
        overlaps: whether the draft prepares branches while the target verifies, on two lanes.
        drafts_by_level: whether a static tree is drafted level by level and not all at once.
        drafts_block: whether all tokens of a chain are drafted in one pass, a row each.
        shortens: whether it may verify the first tokens of a chain that was drafted, and not all.
        is_simulated_only: whether only simulators play it: no drafter exists.
    """

    name: str
    title: str
    flow: MethodFunction
    drafts: _Drafting
    window: WindowKind
    rules: tuple[Verification, ...]
    overlaps: bool = False
    drafts_by_level: bool = False
    drafts_block: bool = False
    shortens: bool = False
    is_simulated_only: bool = False

    def __post_init__(self) -> None:
        """Raise `ValueError` for a method that would cut a tree, or a window whose outcomes the draft prepares for."""
        if self.shortens and (self.window != "chain" or self.overlaps):
            raise ValueError(f"{self.name} shortens windows: they have to be chains, and drafted between the rounds")

    @property
    def is_tree(self) -> bool:
        """Whether windows are trees."""
        return self.window in ("static tree", "dynamic tree")

    @property
    def has_dynamic_trees(self) -> bool:
        """Whether the draft's own probabilities decide the shape of a tree."""
        return self.window == "dynamic tree"

    @property
    def has_draft_lane(self) -> bool:
        """Whether something drafts in a lane, the target's own or another one."""
        return self.drafts in ("draft", "head", "text")

    @property
    def has_draft_model(self) -> bool:
        """Whether the pair's draft model drafts: it has options that no other drafter has."""
        return self.drafts == "draft"

    @property
    def drafts_itself(self) -> bool:
        """Whether the target drafts in its own pass; the first pass then has nothing to verify."""
        return self.drafts == "target"

    @property
    def reads_states(self) -> bool:
        """Whether the drafter always reads the target's hidden states."""
        return self.drafts == "head"

    @property
    def finds_text(self) -> bool:
        """Whether windows are looked up in the sequence so far, so that some are short and some are empty."""
        return self.drafts == "text"

    @property
    def varies(self) -> bool:
        """Whether windows of several lengths are verified."""
        return self.finds_text or self.shortens
