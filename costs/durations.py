"""How long the operations of a schedule take, by context: what both worlds play.

The context of an operation is the number of committed tokens (prompt and new ones) minus one, which is what the
target's cache holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costs.contention import Slowdown
from costs.cost_model import Floats
from costs.crossings import Messages
from costs.group_cost import Collectives
from costs.round_plan import RoundPlan, StepKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """All times that a schedule needs, over consecutive contexts from `first_context`, and `num_paces` times in a row.

    Attributes:
        segments_s: the target's operations, in the plan's order.
        streams_s: the share of each that drafts; zero without streams.
        step_s: steps of a draft model by kind.
        catch_up_s: at [n] the first step of a rollout that has n committed tokens to read before the last one.
        later_s: the steps of a rollout after its first one.
        rollout_s: whole rollouts, at [n] as in `catch_up_s`.
        guessing_s: steps that verify and make 0, 1, ... guesses of the draft's streams; none without streams.
        slowdowns: for each segment and kind of step, what they cost each other; one number for all contexts where
            lanes share no memory.
        target_half_s, draft_half_s: half a dispatch, before and after each operation.
        round_overhead_s: the driver's own time, between a verdict and the next operation.
        collectives: what of these times the devices of a lane wait for each other.
        target_relative_error, draft_relative_error: what the tables of either may be off by together (half-width,
            90 %); those of the target's parts are taken to err the same way, and count by their time.
        features_relative_error, branch_relative_error: what passes that reply states, and steps of branches, may be off
            by on their own; 0 for schedules without.
    """

    plan: RoundPlan
    first_context: int
    num_paces: int = 1
    segments_s: tuple[Floats, ...]
    streams_s: tuple[Floats, ...]
    step_s: Mapping[StepKind, Floats]
    catch_up_s: Floats
    later_s: tuple[Floats, ...]
    rollout_s: Floats
    guessing_s: Floats
    slowdowns: tuple[Mapping[StepKind, Slowdown], ...]
    target_half_s: float
    draft_half_s: float
    round_overhead_s: float
    messages: Messages
    collectives: Collectives
    target_relative_error: float
    draft_relative_error: float
    features_relative_error: float
    branch_relative_error: float
    sources: tuple[str, ...]
