"""The schedules that are tried on every placement: in turn, and mirror with roots of the draft or of exits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Final

from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.models.head_shapes import IN_ONE_PASS
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.question import Question

WINDOWS: Final = (1, 2, 3, 4, 5, 7)
TREE_SIZES: Final = (4, 8, 16, 32, 63)
DRAFT_TOP_K: Final = (1, 2, 4)
EXIT_TOP_K: Final = (1, 4, 8)


def most_branch_tokens() -> int:
    """Keys and values that branches add at most, in tokens: the paper's eight roots for each of eight rows."""
    return most_rows() * max(WINDOWS)


def most_rows() -> int:
    """Rows of a call at most: a root for every candidate of every row."""
    return max(EXIT_TOP_K) * (max(WINDOWS) + 1)


def schedules_on(pair: LanePair, question: Question, drafter: str) -> Iterator[Schedule]:
    """Yield all of a placement that draft; mirror belongs to those on two lanes.

    Taking turns on two streams of one device is taking turns on that device, and no placement of its own. Of a draft
    with streams each drafting one is there with them too, as far as its window has room for any.
    """
    setting = partial(Schedule, target_lane=pair.target, draft_lane=pair.draft, drafter=drafter)
    method = IN_ONE_PASS.get(question.draft.head or "")
    if method is not None and METHODS[method].is_tree:
        for tree, size in product(question.record.trees_of(method), TREE_SIZES):
            yield setting(method=method, num_speculative_tokens=tree.depth, tree_size=size)
    elif method is not None:
        for window in WINDOWS:
            yield setting(method=method, num_speculative_tokens=window)
    else:
        for schedule in _without_streams(pair, setting, question.record.exit_layers):
            yield schedule
            if (most := min(question.record.num_streams, schedule.num_speculative_tokens - 2)) > 0:
                yield schedule.model_copy(update={"draft_streams": most})


def _without_streams(pair: LanePair, setting: partial[Schedule], exits: tuple[int, ...]) -> Iterator[Schedule]:
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
