"""A draft with streams in closed form: fewer and wider steps, each drafted token with its share of one.

A window of 7 tokens takes 3 to 4 hidden steps (arXiv 2510.13161), each of which computes the streams' rows too. A
schedule without streams counts a step per token, so a step of this profile is that share of a hidden step, what the
devices of the lane wait for each other included::

    seconds(rows) = hidden step(rows and their streams) * hidden steps / tokens

How many rows a stream costs is not published: streams are taken to run through the top four layers (Speculative
Streaming, 2402.11131) and through the output head. How often streams are right is not published either; what the steps
of a draft come to whose guesses are right so often, `planner.reproduce.own_steps` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np

from costs.cost_model import LaneCost, Part
from costs.group_cost import GroupCost
from hwprofiles.latency_table import LatencyTable
from hwprofiles.model_shape import ModelShape
from hwprofiles.profile import LaneProfile

NUM_STREAMS: Final = 2
TOKENS_PER_HIDDEN_STEP: Final = 2.0
"""3.5 hidden steps for 7 tokens, the middle of what the paper says."""
_LAYERS: Final = 4
_STEP: Final = Part("draft_step")


def rows_with_streams(shape: ModelShape, rows: int) -> int:
    """Return rows through the whole draft that cost as much as so many with their streams."""
    through = min(_LAYERS, shape.num_layers) * shape.layer_parameters + shape.head_parameters
    share = through / (shape.num_layers * shape.layer_parameters + shape.head_parameters)
    return ceil(rows * (1 + NUM_STREAMS * share))


def with_streams(lane: LaneProfile, cost: LaneCost, shape: ModelShape, rows: Sequence[int]) -> LaneProfile:
    """Return the lane with a draft that streams.

    Args:
        lane: of the plain draft.
        cost: what a step costs one device of the lane, for any number of rows that occurs.
        shape: of the draft.
        rows: of the steps that occur.
    """
    plain = lane.draft_step
    assert plain is not None, "a lane that cannot draft"
    whole = cost if lane.group is None else GroupCost(cost, lane.group)
    contexts = np.array(plain.contexts, dtype=np.float64)
    seconds = [whole.seconds(_STEP, rows_with_streams(shape, count), contexts) for count in rows]
    table = LatencyTable(
        rows=tuple(rows),
        contexts=plain.contexts,
        seconds=tuple(tuple((times / TOKENS_PER_HIDDEN_STEP).tolist()) for times in seconds),
        relative_error=plain.relative_error,
        bytes_per_call=plain.bytes_per_call / TOKENS_PER_HIDDEN_STEP,
        source=f"{plain.source}; {TOKENS_PER_HIDDEN_STEP:g} tokens in a step by streams",
    )
    group = None if lane.group is None else lane.group.model_copy(update={"all_reduces": {}, "all_gathers": {}})
    return lane.model_copy(update={"draft_step": table, "group": group})
