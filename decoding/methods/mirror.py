"""Mirror speculative decoding: the draft prepares every likely outcome while the target verifies (2510.13161).

With root source `draft` there is no exit and the method is the one of SSD / Saguaro (2603.03251).
"""

from __future__ import annotations

from decoding.lanes import Lanes, MethodFlow
from decoding.schedule import Schedule


def mirror(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Verify and draft at the same time; a hit hides the next window's whole drafting."""
    window = yield lanes.draft.rollout()
    while lanes.unfinished:
        if schedule.exit_layer is None:
            verification = lanes.target.verify(window)
            branches = lanes.draft.branch(window)
        else:
            exit_message = lanes.target.prefix(window, schedule.exit_layer)
            verification = lanes.target.suffix()
            branches = lanes.draft.branch(window)
            branches.join((yield exit_message))
        verdict = yield verification
        lanes.commit(window, verdict)
        if lanes.unfinished:
            window = yield branches.take(verdict)
