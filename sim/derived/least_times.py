"""Lower bounds of a schedule's round time: from the work that a round must do, and from peak memory bandwidth."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from costs.cost_model import LaneCost, Part
from costs.prices import Prices
from costs.round_plan import DRAFT_STEP
from costs.split_cost import SplitCost
from decoding.schedule import Schedule
from hwprofiles.platform import Platform
from hwprofiles.profile import Profile
from sim.derived.derived_profile import DerivedProfile
from sim.derived.roofline import RooflineCost


def most_speedup(
    profile: Profile, plain_tpot_s: float, context: float, costs: Mapping[str, LaneCost] | None = None
) -> Callable[[Schedule], float]:
    """Return a function that gives an upper bound of a schedule's speed-up over plain decoding.

    A round commits at most one token more than it drafts.

    Args:
        profile: the machine.
        plain_tpot_s: seconds per token of plain decoding.
        context: cached tokens.
        costs: costs of some lanes in place of the profile's tables.

    The returned function raises `ProfileError` if the profile lacks a part that the schedule uses.
    """
    round_s = fastest_round(profile, context, costs)
    return lambda schedule: (schedule.num_speculative_tokens + 1) * plain_tpot_s / round_s(schedule)


def fastest_round(
    profile: Profile, context: float, costs: Mapping[str, LaneCost] | None = None
) -> Callable[[Schedule], float]:
    """Return a function that gives a lower bound of the seconds of a schedule's rounds; arguments as `most_speedup`.

    A round takes at least verification plus drafting, or the longer of both if they overlap. Not counted: contention,
    the draft's dispatches except one (a text may end after one round), streams, and drafting without a model.
    """
    prices = Prices(profile, costs)

    @cache
    def verify_s(lane: str, rows: int) -> float:
        return profile.lane(lane).dispatch_s + prices.pass_s(lane, rows, context)

    @cache
    def drafting_s(lane: str, step: Part, num_steps: int) -> float:
        # by measurement noise a step with one token more may be faster in the table
        steps_s = min(prices.calls_s(lane, {step: num_steps}, read, context) for read in (1, 2))
        return profile.lane(lane).dispatch_s + steps_s

    def round_s(schedule: Schedule) -> float:
        target_lane, draft_lane = schedule.target_lane, str(schedule.draft_lane)
        times_s = [verify_s(target_lane, schedule.num_rows), 0.0]
        if schedule.traits.has_draft_model:
            step = Part("draft_step_features") if schedule.exit_features else DRAFT_STEP
            times_s[1] = drafting_s(draft_lane, step, schedule.fewest_draft_steps)
        if not schedule.traits.overlaps:
            return sum(times_s)
        # by measurement noise lanes may be faster together than alone
        gains = [min(1.0, one) for one in profile.slowdown(target_lane, draft_lane)]
        return max(gain * time_s for gain, time_s in zip(gains, times_s, strict=True))

    return round_s


def fastest_reading(platform: Platform, machine: DerivedProfile, context: float) -> Callable[[Schedule], float]:
    """Return a function that gives a lower bound of the seconds of a schedule's rounds by peak bandwidths alone.

    Only reading weights and caches takes time. The bound is 0 for measured lanes, whose tables say what was reached.
    """
    at_peak: dict[str, LaneCost] = {
        lane: cost.at_peak(_peak_bytes_per_s(platform, lane))
        for lane, cost in machine.costs.items()
        if isinstance(cost, RooflineCost)
    }
    splits = {lane: cost for lane, cost in machine.costs.items() if isinstance(cost, SplitCost)}
    for lane, cost in splits.items():
        if at_peak.keys() >= {*platform.members(lane)}:
            parts = tuple(one._replace(cost=at_peak[one.device]) for one in cost.parts)
            at_peak[lane] = replace(cost, parts=parts, handovers=())
    free = {"dispatch_s": 0.0, "group": None}
    lanes = tuple(lane.model_copy(update=free) for lane in machine.profile.lanes)
    round_s = fastest_round(machine.profile.model_copy(update={"lanes": lanes}), context, at_peak)

    def least_s(schedule: Schedule) -> float:
        lanes_used = {schedule.target_lane, schedule.draft_lane or schedule.target_lane}
        return round_s(schedule) if at_peak.keys() >= lanes_used else 0.0

    return least_s


def _peak_bytes_per_s(platform: Platform, lane: str) -> float:
    """Return the peak bandwidth of a lane's slowest member, with an equal share of a memory that members share."""
    members, rates = platform.members(lane), []
    for member in members:
        _, pool = platform.pool_of(member)
        shared = pool.bytes_per_s.highest / len({*pool.devices} & {*members})
        rates.append(min(platform.reading_peak(member).highest, shared))
    return min(rates)
