"""Synchronous speculative decoding: draft a window, then verify it (Leviathan 2211.17192, Chen 2302.01318)."""

from __future__ import annotations

from decoding.lanes import Lanes, MethodFlow
from decoding.schedule import Schedule


def speculative(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Draft and verify in turn; one lane always waits for the other."""
    verdict = None
    while lanes.unfinished:
        window = yield lanes.draft.rollout(verdict)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)
