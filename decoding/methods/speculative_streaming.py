"""Speculative streaming on the target itself (2402.11131): one pass verifies a tree and drafts the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.messages import NO_WINDOW, Verdict
from decoding.method_traits import TREE_RULES, MethodTraits

if TYPE_CHECKING:
    from decoding.lanes import Lanes, MethodFlow
    from decoding.schedule import Schedule


def speculative_streaming(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Verify what the last pass drafted; the first pass has nothing to verify."""
    window = NO_WINDOW
    while lanes.unfinished:
        verdict: Verdict = yield lanes.target.stream(window)
        lanes.commit(window, verdict)
        window = verdict.window or NO_WINDOW


SPECULATIVE_STREAMING = MethodTraits(
    name="speculative_streaming",
    title="speculative streaming",
    flow=speculative_streaming,
    drafts="target",
    window="static tree",
    rules=TREE_RULES,
)
