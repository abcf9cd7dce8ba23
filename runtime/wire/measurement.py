"""What a lane can be asked to time: the parts that a latency model adds up (`runtime.worker.timing`)."""

from dataclasses import dataclass
from typing import Literal

Part = Literal[
    "verify",
    "verify_tree",
    "stream",
    "lm_head",
    "exit",
    "draft_step",
    "draft_start",
    "draft_streams",
    "head_step",
    "prefill",
    "draft_prefill",
]
"""verify: a whole verification, its reply included. verify_tree: a verification of a drafted tree of `rows` - 1 nodes,
a path of which is accepted and moved after the text. stream: the same by a target whose streams draft the next tree,
the largest they have. lm_head: what a verification does after its last layer, right after it. exit: what a prefix
does after its exit layer, candidates and their message included, right after the last one. draft_step: one of the draft
model, proposals included: a row of each of as many branches, one more for each of its `num_guesses`, or rows of the
text where one proposes. draft_start: the step of a draft with exit features that reads its window again and starts all
branches: `num_proposals` of the `rows`. draft_streams: what it takes to guess `rows` tokens by the streams of one row
of the draft, or of one row of each branch, `num_guesses` by those of each. head_step: one step of any other drafter at
so many rows (`runtime.drafters.window_drafter.WindowDrafter.timed_step`). prefill, draft_prefill: reading a prompt of
`rows` + 1 tokens, by the target and by whatever drafter is loaded, with the features that it reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One part at one size, timed `repeats` times after `warm_up` runs that do not count.

    `rows` are fed at once (of a tree its nodes and the last committed token) after `context` cached positions. An exit
    after `exit_layer` sends `num_candidates` ids per row. Of a draft step the last `num_proposals` rows propose a token
    (None: all), with `num_alternatives` ids beside it; each branch has `num_guesses`; rows may carry exit features. The
    lane rests for `pause_s` before each run. A verification aside has a text of its own, kept from one time to the
    next: a sequence under way goes on as if nothing had been timed.
    """

    part: Part
    rows: int = 1
    context: int = 0
    repeats: int = 1
    warm_up: int = 2
    exit_layer: int | None = None
    num_candidates: int = 9
    num_proposals: int | None = None
    num_guesses: int = 0
    num_alternatives: int = 0
    with_features: bool = False
    pause_s: float = 0.0
    is_aside: bool = False
