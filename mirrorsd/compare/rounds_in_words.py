"""Whether both worlds went through the same rounds, in words: where they did not, who decided otherwise and why."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.validate import Comparison, Divergence
from decoding.trace import NOT_COMMITTED, Round
from planner.wording import counted

_DOUBTFUL_MARGIN = 0.5
"""Two logits closer than that may change places in bfloat16: it keeps 8 bits, and logits of 16 to 32 move by 1/8."""


def rounds_in_words(comparisons: Sequence[Comparison], dtype: str, *, is_row_invariant: bool | None = None) -> str:
    """Chains and trees counted apart, with the first text of either that left the simulated rounds.

    Args:
        comparisons: of all schedules.
        dtype: of the runs.
        is_row_invariant: whether a row's result does not depend on others computed with it; None if not known.
    """
    if all(one.same_rounds for one in comparisons):
        num_texts = sum(one.num_prompts for one in comparisons)
        return f"All {counted(num_texts, 'text')} went through exactly the rounds that were simulated."
    chains = [one for one in comparisons if not one.is_tree]
    trees = [one for one in comparisons if one.is_tree]
    alarm = " This should not happen: on this machine a row's result does not depend on the rows computed with it."
    parts = [
        _kind(chains, "chains", dtype) + (alarm if is_row_invariant and any(map(is_unexplained, chains)) else ""),
        _kind(trees, "trees", dtype),
    ]
    return " ".join(filter(None, parts))


def is_unexplained(comparison: Comparison) -> bool:
    """Whether a chain left the simulated rounds and no lane was lost: a fault, where rows are invariant."""
    return not comparison.is_tree and any(found.by != "lost lane" for found in comparison.divergences)


def divergence_in_words(found: Divergence) -> str:
    """Where the two worlds differ first, and what each of them decided there."""
    return (
        f"round {found.round + 1}, after {counted(found.position, 'new token')}: "
        f"predicted {_decided(found.simulated)}, measured {_decided(found.measured)}."
    )


def _kind(comparisons: Sequence[Comparison], what: str, dtype: str) -> str:
    parted = [(one, first) for one in comparisons for first in one.divergences]
    num_texts = sum(one.num_prompts for one in comparisons)
    if not num_texts:
        return ""
    if not parted:
        return f"With {what}, all {counted(num_texts, 'text')} went through exactly the simulated rounds."
    one, first = parted[0]
    return (
        f"With {what}, {len(parted)} of {counted(num_texts, 'text')} left the simulated rounds. The first: "
        f"{one.schedule}, prompt {first.prompt}, {divergence_in_words(first)}{_why(first, dtype, is_tree=one.is_tree)}"
    )


def _why(found: Divergence, dtype: str, *, is_tree: bool) -> str:
    if found.by == "lost lane":
        return " The lane of the draft was lost in that run."
    if found.by == "draft":
        return " The target chose the same tokens: what was drafted is not the same."
    if found.margin is None:
        return ""
    apart = f" The target's two best logits are {found.margin:.3f} apart there"
    if dtype != "bfloat16" or found.margin >= _DOUBTFUL_MARGIN:
        return f"{apart}."
    if is_tree:
        return f"{apart}: a node's keys do not lie where they would in the text, and {dtype} decides by that."
    return f"{apart}: a verification of several rows rounds otherwise than one row, and {dtype} decides by that."


def _decided(entry: Round | None) -> str:
    if entry is None:
        return "no further round"
    next_token = entry.outcome[1]
    then = "the end" if next_token == NOT_COMMITTED else f"token {next_token}"
    branch = {None: "", True: " (hit)", False: " (miss)"}[entry.hit]
    return f"{entry.num_accepted} of {entry.num_drafted} accepted, then {then}{branch}"
