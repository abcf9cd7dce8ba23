"""Whether both worlds went through the same rounds; where they did not, who decided otherwise and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calibrate.validate import Comparison, Divergence
from decoding.trace import NOT_COMMITTED, Round
from planner.wording import counted

_DOUBTFUL_MARGIN: Final = 0.5
"""Two logits closer than that may change places in bfloat16: it keeps 8 bits, and logits of 16 to 32 move by 1/8."""
ALARM: Final = "This should not happen: on this machine a row's result does not depend on the rows computed with it."


def rounds_in_words(comparisons: Sequence[Comparison], dtype: str, *, is_row_invariant: bool | None = None) -> str:
    """Count the sequences that left the simulated rounds, chains and trees apart, and show the first of either."""
    if all(one.same_rounds for one in comparisons):
        num_texts = sum(one.num_prompts for one in comparisons)
        return f"All {counted(num_texts, 'text')} went through exactly the rounds that were simulated."
    parts = []
    for name, is_tree in (("chains", False), ("trees", True)):
        of_kind = [one for one in comparisons if one.is_tree == is_tree]
        num_texts = sum(one.num_prompts for one in of_kind)
        if not num_texts:
            continue
        parted = [(one, found) for one in of_kind for found in one.divergences]
        parts.append(f"{len(parted)} of {counted(num_texts, 'text')} with {name} left the simulated rounds.")
        for one, found in parted[:1]:
            where = f"First: {one.schedule}, prompt {found.prompt}, {divergence_in_words(found)}"
            parts += [where, *_cause(found, dtype)]
        if is_row_invariant and any(map(is_unexplained, of_kind)):
            parts.append(ALARM)
    return " ".join(parts)


def is_unexplained(comparison: Comparison) -> bool:
    """Return whether a chain left the simulated rounds and no lane was lost: a fault, where rows are invariant."""
    return not comparison.is_tree and any(found.by != "lost lane" for found in comparison.divergences)


def divergence_in_words(found: Divergence) -> str:
    """Say where the two worlds differ first, and what each of them decided there."""
    return (
        f"round {found.round + 1}, after {counted(found.position, 'new token')}: "
        f"predicted {_decided(found.simulated)}, measured {_decided(found.measured)}."
    )


def _cause(found: Divergence, dtype: str) -> list[str]:
    if found.by != "target" or found.margin is None:
        return [f"It was decided by the {found.by}."] if found.by != "unknown" else []
    is_tie = dtype == "bfloat16" and found.margin < _DOUBTFUL_MARGIN
    tie = f", which {dtype} rounds otherwise among other rows" if is_tie else ""
    return [f"The target's two best logits are {found.margin:.3f} apart there{tie}."]


def _decided(entry: Round | None) -> str:
    if entry is None:
        return "no further round"
    next_token = entry.outcome[1]
    then = "the end" if next_token == NOT_COMMITTED else f"token {next_token}"
    branch = {None: "", True: " (hit)", False: " (miss)"}[entry.hit]
    return f"{entry.num_accepted} of {entry.num_drafted} accepted, then {then}{branch}"
