"""A draft with streams in closed form: fewer and wider steps, each drafted token with its share of one.

A window of 7 tokens takes 3 to 4 hidden steps (arXiv 2510.13161), each of which computes the streams' rows too. A
schedule without streams counts a step per token, so a step of this profile is that share of a hidden step, what the
devices of the lane wait for each other included::

    seconds(rows) = hidden step(rows and their streams) * hidden steps / tokens

How many rows a stream costs is not published: streams are taken to run through the top four layers (Speculative
Streaming, 2402.11131) and through the output head. How often streams are right is not published either; what the steps
of a draft come to whose guesses are right so often, `planner.reproduce.own_steps` says. A window's first step has no
guesses, every other one keeps the right ones in a row and one token more: one rate for every guess gives the steps that
are expected, and 3.5 of them give the rate (`stream_rate`). In a simulated round branches go on until all have ended.
"""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from costs.cost_model import Floats, LaneCost, Part, PartFacts
from costs.group_cost import GroupCost
from hwprofiles.model_shape import ModelShape
from hwprofiles.profile import LaneProfile

NUM_STREAMS: Final = 2
TOKENS_PER_HIDDEN_STEP: Final = 2.0
"""3.5 hidden steps for 7 tokens, the middle of what the paper says."""
_LAYERS: Final = 4
_HALVINGS: Final = 40


def rows_with_streams(shape: ModelShape, rows: int) -> int:
    """Return rows through the whole draft that cost as much as so many with their streams."""
    through = min(_LAYERS, shape.num_layers) * shape.layer_parameters + shape.head_parameters
    share = through / (shape.num_layers * shape.layer_parameters + shape.head_parameters)
    return ceil(rows * (1 + NUM_STREAMS * share))


class StreamingCost(NamedTuple):
    """A step of a draft that streams, for each drafted token. See `costs.cost_model.LaneCost`.

    Attributes:
        whole: the plain draft's lane, what its devices wait for each other included.
        shape: of the draft.
    """

    whole: LaneCost
    shape: ModelShape

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        return self.whole.seconds(part, rows_with_streams(self.shape, int(rows)), contexts) / TOKENS_PER_HIDDEN_STEP

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        return self.whole.missing(part, rows_with_streams(self.shape, int(rows)), contexts)

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        error, num_bytes, source = self.whole.facts(part)
        told = f"{source}; {TOKENS_PER_HIDDEN_STEP:g} tokens in a step by streams"
        return PartFacts(error, num_bytes / TOKENS_PER_HIDDEN_STEP, told)


def with_streams(lane: LaneProfile, cost: LaneCost, shape: ModelShape) -> tuple[LaneProfile, LaneCost]:
    """The lane of a plain draft with one that streams, and its cost; `cost` is that of one device of the lane."""
    if lane.group is None:
        return lane, StreamingCost(cost, shape)
    group = lane.group.model_copy(update={"all_reduces": {}, "all_gathers": {}})
    return lane.model_copy(update={"group": group}), StreamingCost(GroupCost(cost, lane.group), shape)


def mean_steps(rate: float, num_tokens: int, num_streams: int) -> float:
    """Return steps of a window whose guesses are right with a rate, given that those before them in their step are."""
    left = [0.0] * (num_tokens + 1)  # steps after so many tokens
    for num_drafted in range(num_tokens - 1, 0, -1):
        num_guesses = min(num_streams, num_tokens - num_drafted - 1)
        shares = [rate**hits * (1 - rate if hits < num_guesses else 1) for hits in range(num_guesses + 1)]
        then = left[num_drafted + 1 : num_drafted + num_guesses + 2]
        left[num_drafted] = 1 + sum(share * steps for share, steps in zip(shares, then, strict=True))
    return 1 + left[1]


def stream_rate(num_tokens: int, num_streams: int = NUM_STREAMS, *, steps: float | None = None) -> float:
    """Return the rate at which a window takes so many steps; None is as many as the paper's.

    Raises:
        ValueError: no rate gives it.
    """
    steps = num_tokens / TOKENS_PER_HIDDEN_STEP if steps is None else steps
    low, high = 0.0, 1.0
    if not mean_steps(high, num_tokens, num_streams) <= steps <= mean_steps(low, num_tokens, num_streams):
        msg = f"{num_tokens} tokens in {steps:g} steps: no rate of {num_streams} streams gives that"
        raise ValueError(msg)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_steps(middle, num_tokens, num_streams) > steps else (low, middle)
    return (low + high) / 2
