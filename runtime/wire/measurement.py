"""What a lane can time: the parts that a latency model adds up (`runtime.worker.timing` times them)."""

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
"""The parts:

- `verify`: a whole verification, with encoding its reply;
- `verify_tree`: a verification of a tree of `rows` - 1 nodes, whose accepted path is moved behind the text;
- `stream`: the same by a target whose streams draft the next tree, of the largest size;
- `lm_head`: what a verification does after its last layer, timed right after that layer;
- `exit`: what a prefix does after its exit layer, with candidates and their message, timed right after the target's
  last layer;
- `draft_step`: a step of the draft model, with proposals: a row for each branch and for each of its `num_guesses`, or
  several rows of the text, one of which proposes;
- `draft_start`: the step of a draft with exit features that reads its window again and starts `num_proposals` branches;
- `draft_streams`: guessing `rows` tokens by the draft's streams, from one row or from a row of each branch, with
  `num_guesses` for each;
- `head_step`: a step of another drafter (`runtime.drafters.window_drafter.WindowDrafter.timed_step`);
- `prefill`, `draft_prefill`: reading a prompt of `rows` + 1 tokens by the target, or by the loaded drafter with the
  features that it reads.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A part to time `repeats` times, after at least `warm_up` runs that are not timed.

    Attributes:
        rows: rows of a call (for a tree, its nodes and the last committed token).
        context: KV positions before them.
        exit_layer, num_candidates: of an exit: its layer, and the ids that it sends per row.
        num_proposals: number of last rows of a draft step that propose a token; None for all.
        num_guesses: guesses of streams for each branch.
        num_alternatives: further ids that each proposal has.
        with_features: whether rows of a draft step have exit features.
        pause_s: how long the lane rests before each run.
        is_aside: whether a verification uses a separate sequence, kept for the next time, so that the lane's current
            sequence is not disturbed.
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
