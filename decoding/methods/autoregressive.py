"""Plain decoding: one target pass per token."""

from __future__ import annotations

from decoding.lanes import Lanes, MethodFlow
from decoding.messages import NO_WINDOW
from decoding.schedule import Schedule


def autoregressive(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Verify an empty window until the sequence ends."""
    while lanes.unfinished:
        verdict = yield lanes.target.verify(NO_WINDOW)
        lanes.commit(NO_WINDOW, verdict)
