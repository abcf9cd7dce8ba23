"""How much a schedule could bring at most, were every drafted token accepted and every draft in time."""

from __future__ import annotations

from collections.abc import Mapping

from costs.cost_model import LaneCost, Part
from costs.prices import Prices
from costs.round_plan import DRAFT_STEP, LAYER, LM_HEAD
from decoding.schedule import Schedule
from hwprofiles.profile import Profile


def most_speedup(
    schedule: Schedule,
    profile: Profile,
    plain_tpot_s: float,
    context: float,
    costs: Mapping[str, LaneCost] | None = None,
) -> float:
    """Return an upper bound of the speed-up over plain decoding.

    A round commits at most one token more than are drafted. In turn it takes a verification and the drafting; at the
    same time it takes the longer of both, each slowed by what the lanes cost each other only while both work: a bound
    leaves that out. A step of a draft whose streams are always right costs what one without does, at least; drafting
    without a draft model counts as free.

    `costs` replaces the measured cost of the lanes that it names.

    Raises:
        ProfileError: the profile lacks what the schedule uses.
    """
    prices = Prices(profile, costs)
    window = schedule.num_speculative_tokens
    layers = {LAYER: profile.num_layers, LM_HEAD: 1}
    rows = schedule.tree_size + 1 if schedule.is_tree else window + 1
    verify_s = _operations_s(prices, schedule.target_lane, layers, rows, context)
    if not schedule.traits.has_draft_model:
        return (window + 1) * plain_tpot_s / verify_s
    step = Part("draft_step_features") if schedule.exit_features else DRAFT_STEP
    steps = schedule.fewest_draft_steps
    # in turn all steps are one operation, next to the target each may be the last
    count = steps if schedule.traits.overlaps else 1
    drafting_s = _operations_s(prices, str(schedule.draft_lane), {step: steps}, 1, context, count=count)
    round_s = max(verify_s, drafting_s) if schedule.traits.overlaps else verify_s + drafting_s
    return (window + 1) * plain_tpot_s / round_s


def _operations_s(
    prices: Prices, lane: str, calls: Mapping[Part, int], rows: int, context: float, *, count: int = 1
) -> float:
    """Return the seconds of so many operations on a lane that make some calls together, dispatch and all."""
    return count * prices.profile.lane(lane).dispatch_s + prices.calls_s(lane, calls, rows, context)
