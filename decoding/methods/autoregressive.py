"""Plain decoding: one target pass per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.messages import NO_WINDOW, Verdict
from decoding.method_traits import CHAIN_RULES, MethodTraits

if TYPE_CHECKING:
    from decoding.lanes import Lanes, MethodFlow
    from decoding.schedule import Schedule


def autoregressive(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Verify an empty window until the sequence ends."""
    while lanes.unfinished:
        verdict: Verdict = yield lanes.target.verify(NO_WINDOW)
        lanes.commit(NO_WINDOW, verdict)


AUTOREGRESSIVE = MethodTraits(
    name="autoregressive",
    title="plain decoding",
    flow=autoregressive,
    drafts="nobody",
    window="none",
    rules=CHAIN_RULES,
)
