"""The schedules that are tried on every placement: plain, in turn, and mirror with roots of the draft or of exits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from typing import Final

from decoding.schedule import Schedule
from planner.platform_plan.device_pairs import LanePair

WINDOWS: Final = (1, 2, 3, 4, 5, 7)
DRAFT_TOP_K: Final = (1, 2, 4)
EXIT_TOP_K: Final = (1, 4, 8)
MOST_BRANCH_ROWS: Final = 64
"""Branches that a step takes further at most: the paper's eight for each of eight rows."""


def most_branch_tokens() -> int:
    """Keys and values that branches add at most, in tokens."""
    return MOST_BRANCH_ROWS * max(WINDOWS)


def schedules_on(pair: LanePair, drafter: str, exits: Iterable[int]) -> Iterator[Schedule]:
    """All of a placement; plain decoding belongs to those on one lane, mirror to those on two."""
    setting = partial(Schedule, target_lane=pair.target, draft_lane=pair.draft, drafter=drafter)
    if pair.is_pooled:
        yield Schedule(method="autoregressive", target_lane=pair.target)
    for window in WINDOWS:
        yield setting(method="speculative", num_speculative_tokens=window)
    if pair.in_turn:
        return
    for window, top_k in product(WINDOWS, DRAFT_TOP_K):
        yield setting(method="mirror", num_speculative_tokens=window, root_source="draft", draft_top_k=top_k)
    for window, top_k, layer in product(WINDOWS, EXIT_TOP_K, exits):
        if top_k * (window + 1) <= MOST_BRANCH_ROWS:
            yield setting(
                method="mirror",
                num_speculative_tokens=window,
                root_source="exit",
                exit_layer=layer,
                exit_top_k=top_k,
            )
