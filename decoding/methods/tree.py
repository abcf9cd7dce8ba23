"""Tree speculation: heads that read the target's states draft a tree, the target verifies it in one pass.

Medusa (2401.10774), Hydra (2402.05109), EAGLE-2 (2406.16858) and EAGLE-3 (2503.01840) differ in how a tree is
drafted, which is the business of their drafters, and in nothing else.
"""

from __future__ import annotations

from decoding.lanes import Lanes, MethodFlow
from decoding.schedule import Schedule


def tree(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Draft a tree from the states behind the last verdict, then verify it."""
    verdict = None
    while lanes.unfinished:
        window = yield lanes.draft.rollout(verdict)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)
