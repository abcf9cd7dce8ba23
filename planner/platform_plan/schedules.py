"""The schedules that are tried on every placement: in turn, and mirror with roots of the draft or of exits."""

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


def most_branch_tokens() -> int:
    """Keys and values that branches add at most, in tokens: the paper's eight roots for each of eight rows."""
    return most_rows() * max(WINDOWS)


def most_rows() -> int:
    """Rows of a call at most: a root for every candidate of every row."""
    return max(EXIT_TOP_K) * (max(WINDOWS) + 1)


def schedules_on(pair: LanePair, drafter: str, exits: Iterable[int], num_streams: int = 0) -> Iterator[Schedule]:
    """Yield all of a placement that draft; mirror belongs to those on two lanes.

    Taking turns on two streams of one device is taking turns on that device, and no placement of its own. Of a draft
    with streams each drafting one is there with them too, as far as its window has room for any.
    """
    for schedule in _without_streams(pair, drafter, exits):
        yield schedule
        if (most := min(num_streams, schedule.num_speculative_tokens - 2)) > 0:
            yield schedule.model_copy(update={"draft_streams": most})


def _without_streams(pair: LanePair, drafter: str, exits: Iterable[int]) -> Iterator[Schedule]:
    setting = partial(Schedule, target_lane=pair.target, draft_lane=pair.draft, drafter=drafter)
    if not pair.is_two_streams:
        for window in WINDOWS:
            yield setting(method="speculative", num_speculative_tokens=window)
    if pair.in_turn:
        return
    for window, top_k in product(WINDOWS, DRAFT_TOP_K):
        yield setting(method="mirror", num_speculative_tokens=window, root_source="draft", draft_top_k=top_k)
    for window, top_k, layer in product(WINDOWS, EXIT_TOP_K, exits):
        yield setting(
            method="mirror", num_speculative_tokens=window, root_source="exit", exit_layer=layer, exit_top_k=top_k
        )
