"""How much a placement and a window could bring at most, were every drafted token accepted and every draft in time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from sim.cost.cost_model import Part
from sim.cost.group_cost import cost_of
from sim.cost.round_plan import DRAFT_STEP, LAYER, LM_HEAD


def most_speedup(schedule: Schedule, profile: Profile, plain_tpot_s: float, context: float) -> float:
    """Upper bound of the speed-up over plain decoding.

    A round commits at most one token more than are drafted. In turn it takes a verification and the drafting; at the
    same time it takes the longer of both, each slowed by what the lanes cost each other only while both work: a bound
    leaves that out. A step of a draft whose streams are always right costs what one without does, at least.

    Raises:
        ProfileError: the profile lacks what the schedule uses.
    """
    window = schedule.num_speculative_tokens
    verify_s = _dispatched_s(
        profile, schedule.target_lane, {LAYER: profile.num_layers, LM_HEAD: 1}, window + 1, context
    )
    if not window:
        return plain_tpot_s / verify_s
    drafting_s = schedule.fewest_draft_steps * _dispatched_s(
        profile, str(schedule.draft_lane), {DRAFT_STEP: 1}, 1, context
    )
    round_s = max(verify_s, drafting_s) if schedule.traits.overlaps else verify_s + drafting_s
    return (window + 1) * plain_tpot_s / round_s


def _dispatched_s(profile: Profile, name: str, calls: Mapping[Part, int], rows: int, context: float) -> float:
    """One operation on a lane, dispatch and all."""
    lane = profile.lane(name)
    cost, at = cost_of(lane), np.array([context])
    return lane.dispatch_s + sum(count * float(cost.seconds(part, rows, at)[0]) for part, count in calls.items())
