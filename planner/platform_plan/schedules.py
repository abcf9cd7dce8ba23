"""The schedules that a plan tries on each placement: in turn, and mirror with roots from the draft or from exits."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Final

from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.models.head_shapes import IN_ONE_PASS
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.question import MOST_DRAFTED, Question

WINDOWS: Final = (1, 2, 3, 4, 5, MOST_DRAFTED)
TREE_SIZES: Final = (4, 8, 16, 32, 63)
DRAFT_TOP_K: Final = (1, 2, 4)
EXIT_TOP_K: Final = (1, 4, 8)


def most_branch_tokens() -> int:
    """Return the most tokens that the branches of a round draft: `most_rows` branches of the longest window."""
    return most_rows() * max(WINDOWS)


def most_rows() -> int:
    """Return the most rows of a draft step: one for each root of each row of the longest window."""
    return max(EXIT_TOP_K) * (max(WINDOWS) + 1)


def schedules_on(pair: LanePair, question: Question, drafter: str) -> Iterator[Schedule]:
    """Yield the drafting schedules of a placement, each without streams and, where the window has room, with them.

    Mirror needs two lanes. On two streams of one device only mirror is tried: taking turns there is the same as taking
    turns on the device, which is a placement of its own.
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
            num_streams = min(question.record.num_streams, schedule.num_speculative_tokens - 2)
            if num_streams > 0:
                yield schedule.model_copy(update={"draft_streams": num_streams})


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
