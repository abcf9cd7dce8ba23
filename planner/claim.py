"""What is claimed of two schedules: sentences are made from claims, so that no sentence says more than a ratio does."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from planner.paired_ratio import MOST_PAIRS, Outcome, Ratio, pairs_needed
from planner.wording import counted, factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """`one` is faster or slower than `other`, or that cannot be told; `ratio` is the other's time over one's."""

    one: str
    other: str
    ratio: Ratio

    @property
    def outcome(self) -> Outcome:
        """What is known of `one`."""
        return self.ratio.outcome


def in_words(ratio: Ratio) -> str:
    """`1.33× (1.21× to 1.46×)`; one prompt has no interval."""
    if isinf(ratio.high):
        return factor(ratio.value)
    return f"{factor(ratio.value)} ({factor(ratio.low)} to {factor(ratio.high)})"


def more_prompts(ratio: Ratio) -> str:
    """How many prompts would tell what these do not, were the others like them."""
    if ratio.num_pairs == 1:
        return "One prompt does not show how much prompts differ; more of them would."
    needed = pairs_needed(ratio)
    if needed is None:
        return f"Even {counted(MOST_PAIRS, 'prompt')} like these would not tell."
    return f"About {counted(needed, 'prompt')} like these would tell."
