"""The facts about a decoding method that do not depend on its settings; each generator has one such description.

Other code reads these facts and never compares method names, so a new method is one generator and one description.
"""

from dataclasses import dataclass
from typing import Literal

from decoding.lanes import MethodFunction

_Drafting = Literal["nobody", "draft", "head", "text", "target"]
"""What drafts: nothing; the draft model; a draft head, which reads the target's hidden states; a lookup in the sequence
so far; or the target within its pass. `draft`, `head` and `text` draft in a lane, which may be the target's."""

WindowKind = Literal["none", "chain", "static tree", "dynamic tree"]
"""What a pass verifies: no drafted token; a chain; a tree of fixed shape; a tree shaped by the draft's
probabilities."""

Verification = Literal["greedy", "match", "ratio", "one-hot", "typical"]
"""Rules by which a drafted token is accepted (`runtime.verification.rules`); `typical` alone is lossy.

greedy: it is the target's best token. match: it is the token that the target samples. ratio: rejection sampling, with
the ratio of the two models' probabilities (Leviathan). one-hot: the same with draft probability 1, for drafts that are
not sampled. typical: the target gives it enough probability (Medusa).
"""

CHAIN_RULES: tuple[Verification, ...] = ("greedy", "match", "ratio")
TREE_RULES: tuple[Verification, ...] = ("greedy", "match", "one-hot", "typical")


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodTraits:
    """A decoding method: its generator, and the facts that simulation, search and runtime need.

    Attributes:
        name, title: its id in schedules, and its name in reports.
        flow: the generator.
        drafts: what drafts.
        window: what a pass verifies.
        rules: verification rules that its windows allow; all but `typical` keep the target's distribution.
        overlaps: whether the draft prepares branches while the target verifies, on another lane.
        drafts_by_level: whether a static tree is drafted level by level rather than in one step.
        drafts_block: whether one pass drafts all tokens of a chain, a row each.
        shortens: whether it may verify only the first tokens of a drafted chain.
        is_simulated_only: whether only simulators know it, as no drafter for it exists here.
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
        """Raise `ValueError` for a method that shortens trees, or windows for which branches are prepared."""
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
        """Whether a drafter works in a lane, the target's or another one."""
        return self.drafts in ("draft", "head", "text")

    @property
    def has_draft_model(self) -> bool:
        """Whether a draft model drafts; it has options that no other drafter has."""
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
        """Whether windows are looked up in the sequence so far; some are then short or empty."""
        return self.drafts == "text"

    @property
    def varies(self) -> bool:
        """Whether windows differ in length."""
        return self.finds_text or self.shortens
