"""Speculative streaming on the target itself (2402.11131): one pass verifies a tree and drafts the next one."""

from __future__ import annotations

from decoding.lanes import Lanes, MethodFlow
from decoding.messages import NO_WINDOW
from decoding.schedule import Schedule


def speculative_streaming(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Verify what the last pass drafted; the first pass has nothing to verify."""
    window = NO_WINDOW
    while lanes.unfinished:
        verdict = yield lanes.target.stream(window)
        lanes.commit(window, verdict)
        window = verdict.window
