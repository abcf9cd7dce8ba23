"""Mirror speculative decoding (2510.13161): the draft prepares for likely outcomes while the target verifies.

With `root_source: draft`, branches start with the draft's second-best and further tokens, without an early exit
(SSD / Saguaro, 2603.03251).
"""

from typing import TYPE_CHECKING

from decoding.lanes import Lanes, MethodFlow
from decoding.messages import ExitSignal, Verdict, Window
from decoding.method_traits import CHAIN_RULES, MethodTraits

if TYPE_CHECKING:
    from decoding.schedule import Schedule


def mirror(lanes: Lanes, schedule: "Schedule") -> MethodFlow:
    """Verify and draft at the same time; on a hit the next window was drafted during the verification."""
    window: Window = yield lanes.draft.rollout()
    while lanes.unfinished:
        if schedule.exit_layer is None:
            verification = lanes.target.verify(window)
            branches = lanes.draft.branch(window)
        else:
            exit_message = lanes.target.prefix(window, schedule.exit_layer)
            verification = lanes.target.suffix()
            branches = lanes.draft.branch(window)
            signal: ExitSignal = yield exit_message
            branches.join(signal)
        verdict: Verdict = yield verification
        lanes.commit(window, verdict)
        if lanes.unfinished:
            window = yield branches.take(verdict)


MIRROR = MethodTraits(
    name="mirror",
    title="mirror speculation",
    flow=mirror,
    drafts="draft",
    window="chain",
    rules=CHAIN_RULES,
    overlaps=True,
)
