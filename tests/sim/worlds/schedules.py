"""Schedules for tests of the simulator, in the lanes of its small machines."""

from typing import Any

from decoding.record import RecordedTree
from decoding.schedule import Schedule
from tests.sim.worlds.records import LOOKUP


def mirror(root_source: str, *, num_tokens: int = 2, **fields: Any) -> Schedule:
    """A mirror schedule with one root per row and source, exit after layer 4."""
    sources: dict[str, dict[str, Any]] = {
        "exit": {"exit_layer": 4, "exit_top_k": 1},
        "draft": {"draft_top_k": 1},
        "hybrid": {"exit_layer": 4, "exit_top_k": 1, "draft_top_k": 1},
    }
    if "roots_per_row" in fields:
        sources = {"exit": {"exit_layer": 4}, "draft": {}}
    return Schedule(
        method="mirror",
        target_lane="target",
        draft_lane="draft",
        num_speculative_tokens=num_tokens,
        root_source=root_source,
        **(sources[root_source] | fields),
    )


def speculative(num_tokens: int = 2, *, draft_lane: str = "draft", **fields: Any) -> Schedule:
    """A synchronous schedule."""
    return Schedule(
        method="speculative", target_lane="target", draft_lane=draft_lane, num_speculative_tokens=num_tokens, **fields
    )


def tree(recorded: RecordedTree, size: int, *, draft_lane: str = "draft", **fields: Any) -> Schedule:
    """A schedule that drafts the trees of a record."""
    return Schedule(
        method=recorded.method,
        target_lane="target",
        draft_lane=None if recorded.method == "speculative_streaming" else draft_lane,
        num_speculative_tokens=recorded.depth,
        tree_size=size,
        tree_top_k=recorded.top_k,
        drafter=recorded.drafter,
        **fields,
    )


def lookup(num_tokens: int = 2, *, draft_lane: str = "target") -> Schedule:
    """A schedule that finds its windows in the text."""
    return Schedule(
        method=LOOKUP.method,
        target_lane="target",
        draft_lane=draft_lane,
        num_speculative_tokens=num_tokens,
        drafter=LOOKUP.drafter,
    )


AUTOREGRESSIVE = Schedule(method="autoregressive", target_lane="target")
