"""The time, energy and price of every schedule on every placement of a platform, the fastest first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

from decoding.errors import PlanError
from decoding.schedule import Schedule
from hwprofiles.platform import Platform
from hwprofiles.sheets import DeviceSheet
from planner.platform_plan.device_pairs import LanePair, LeftOut
from planner.platform_plan.memory_fit import Places
from planner.platform_plan.question import Question
from planner.platform_plan.schedules import schedules_on
from planner.published.published_gains import ENGINE_ERROR
from planner.row_curve import few_rows_error
from planner.wording import counted, factor, schedule_names
from sim.derived.assumption import Assumption
from sim.derived.derived_profile import DerivedProfile
from sim.derived.least_times import fastest_reading, most_speedup
from sim.derived.roofline import RooflineCost
from sim.error_shares import ErrorShare
from sim.evaluator import Evaluator
from sim.prediction import Prediction

IDLE_SHARE: Final = Assumption.shipped("power.idle_share")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSchedule:
    """A schedule on a placement, and what is predicted for it.

    Attributes:
        prediction: predicted times; their errors include those of `Doubts`.
        speedup: time per token of the fastest plain decoding over that of this schedule.
        bound: upper bound of the speed-up, see `most_speedup`.
        least_s: time per token if everything were read at the data sheets' peak bandwidth; 0 where lanes were timed.
        memory_bytes: what is needed of all memories together.
        num_devices: devices that compute.
        energy_j_per_token, usd_per_million_tokens: None where a sheet gives no power, or no price.
        needs_training: whether it uses an early exit that nobody is known to have trained.
    """

    schedule: Schedule
    pair: LanePair
    prediction: Prediction
    speedup: float
    bound: float
    least_s: float
    memory_bytes: float
    num_devices: int
    energy_j_per_token: float | None
    usd_per_million_tokens: float | None
    needs_training: bool

    @property
    def place(self) -> str:
        """The lanes that it runs on, in words."""
        return str(self.pair) if self.schedule.num_speculative_tokens else f"target on {self.pair.target}"

    @property
    def placement(self) -> str:
        """How the models share time: `alone` (no draft), `pooled` (in turn) or `split`."""
        return self.pair.placement if self.schedule.num_speculative_tokens else "alone"

    @property
    def tpot_s(self) -> float:
        """Predicted time per token."""
        return self.prediction.tpot_s

    @property
    def tpot_s_low(self) -> float:
        """Lower end of the interval (90 %); never below the time of reading at the memory's peak bandwidth."""
        return min(self.tpot_s, max(self.prediction.tpot_s_low, self.least_s))

    @property
    def tpot_s_high(self) -> float:
        """Upper end of the interval (90 %)."""
        return self.prediction.tpot_s_high

    @property
    def ttft_s(self) -> float | None:
        """Predicted time to the first token."""
        return self.prediction.ttft_s


UNTRAINED: Final = " (exit to be trained)"


class SlowTarget(NamedTuple):
    """A target lane on which speculation cannot win whatever drafts, and why."""

    lane: str
    why: str

    def __str__(self) -> str:
        """Return both in words."""
        return f"drafts for a target on {self.lane}: {self.why}"


NotRanked = LeftOut | SlowTarget


def schedule_names_of(schedules: Sequence[PlannedSchedule]) -> tuple[str, ...]:
    """Return a name for each schedule of one table."""
    names = schedule_names([(one.schedule, one.placement) for one in schedules])
    return tuple(f"{name}{UNTRAINED * one.needs_training}" for name, one in zip(names, schedules, strict=True))


def ranked(
    question: Question, places: Places, machine: DerivedProfile
) -> tuple[tuple[PlannedSchedule, ...], list[NotRanked]]:
    """Return all schedules, the fastest first, and what was left out.

    Raises:
        PlanError: plain decoding can be predicted nowhere.
    """
    evaluator = Evaluator(machine.profile, question.record, costs=machine.costs)
    alone = [Schedule(method="autoregressive", target_lane=lane) for lane in places.alone]
    plain_s = {one.target_lane: evaluator.tpot_s(one) for one in alone if evaluator.missing(one) is None}
    if not plain_s:
        reasons = sorted({str(evaluator.missing(one)) for one in alone})
        raise PlanError(f"{question.target} can be decoded nowhere: {'; '.join(reasons)}")
    found = [(one, LanePair.alone(one.target_lane)) for one in alone if one.target_lane in plain_s]
    drafter = str(machine.profile.drafter)
    drafting = [(one, pair) for pair in places.pairs for one in schedules_on(pair, question, drafter)]
    possible, left_out = _possible(drafting, plain_s, evaluator)
    planned = _planner(question, places, machine, evaluator, min(plain_s.values()))
    return tuple(sorted((planned(*one) for one in found + possible), key=lambda one: one.tpot_s)), left_out


def _planner(
    question: Question, places: Places, machine: DerivedProfile, evaluator: Evaluator, fastest_s: float
) -> Callable[[Schedule, LanePair], PlannedSchedule]:
    """Return a function that predicts a schedule; the fastest plain decoding takes `fastest_s` per token."""
    platform, doubts = question.platform, Doubts(question, machine, fastest_s)
    memory: defaultdict[tuple[LanePair, bool], float] = defaultdict(float)
    for need in places.needs:
        memory[need.pair, need.is_plain] += need.needed_bytes
    shortest = float(question.record.contexts.start)
    bound = most_speedup(machine.profile, fastest_s, shortest, machine.costs)
    least_round_s = fastest_reading(platform, machine, shortest)

    def planned(schedule: Schedule, pair: LanePair) -> PlannedSchedule:
        prediction = evaluator.predict(schedule)
        return PlannedSchedule(
            schedule=schedule,
            pair=pair,
            prediction=doubts.added(schedule, prediction),
            speedup=fastest_s / prediction.tpot_s,
            bound=bound(schedule),
            least_s=least_round_s(schedule) / prediction.mean_acceptance_length,
            memory_bytes=memory[pair, schedule.draft_lane is None],
            num_devices=len({*platform.members(pair.target), *platform.members(pair.draft)}),
            energy_j_per_token=energy_j_per_token(platform, pair, prediction, machine.shares(pair.target)),
            usd_per_million_tokens=usd_per_million_tokens(platform, pair, prediction),
            needs_training=schedule.exit_layer is not None and not question.has_exits,
        )

    return planned


_Placed = tuple[Schedule, LanePair]


def _possible(
    drafting: Sequence[_Placed], plain_s: Mapping[str, float], evaluator: Evaluator
) -> tuple[list[_Placed], list[NotRanked]]:
    """Return the schedules that can be predicted and could win, and why the others are left out."""
    missing = {one: evaluator.missing(one) for one, _ in drafting}
    slow = _too_slow(plain_s, [one for one, reason in missing.items() if reason is None], evaluator)
    reasons = [slow.get(pair.target) or missing[one] for one, pair in drafting]
    left_out = [
        reason if isinstance(reason, SlowTarget) else LeftOut(counted(count, "schedule"), reason)
        for reason, count in Counter(reason for reason in reasons if reason is not None).items()
    ]
    return [one for one, reason in zip(drafting, reasons, strict=True) if reason is None], left_out


def _too_slow(
    plain_s: Mapping[str, float], possible: Sequence[Schedule], evaluator: Evaluator
) -> dict[str, SlowTarget]:
    """Return the target lanes on which speculation cannot win even if drafting took no time, and why.

    `possible` are the schedules that draft. A round takes at least as long as a token of plain decoding on the lane,
    and commits at most as many tokens as with the longest draft. Nothing is returned if no other lane would be left.
    """
    if not possible:
        return {}
    widest = evaluator.predict(max(possible, key=lambda one: one.num_speculative_tokens))
    tokens_a_round, fastest_s = widest.num_tokens / widest.num_rounds, min(plain_s.values())
    slow = {
        lane: SlowTarget(
            lane,
            f"a token takes {factor(time_s / fastest_s)} as long there as on the fastest lane, and a round yields at "
            f"most {tokens_a_round:.2g} tokens",
        )
        for lane, time_s in plain_s.items()
        if time_s > tokens_a_round * fastest_s
    }
    return slow if any(one.target_lane not in slow for one in possible) else {}


class Doubts:
    """Errors of predictions from data sheets, in addition to the error of a lane's speed."""

    def __init__(self, question: Question, machine: DerivedProfile, plain_s: float) -> None:
        """Take a machine, and the time per token of the fastest plain decoding."""
        self._question, self._machine, self._plain_s = question, machine, plain_s
        self._few_rows_error = cache(self._error_of_rows)

    def about(self, schedule: Schedule) -> bool:
        """Return whether a schedule drafts for a target whose rows were not timed on its lane."""
        return schedule.num_speculative_tokens > 0 and not self._machine.speeds.keys().isdisjoint(
            self._machine.shares(schedule.target_lane)
        )

    def added(self, schedule: Schedule, prediction: Prediction) -> Prediction:
        """Return a prediction with two more errors: of what rows cost, and of how much of a gain engines realise.

        The error of a lane's speed is common to all its passes and cancels in ratios; that of further rows does not.
        """
        if not self.about(schedule):
            return prediction
        lane = self._machine.profile.lane(schedule.target_lane)
        error = self._few_rows_error(lane.name, schedule.num_rows)
        verifying = ErrorShare(prediction.target_busy_s / prediction.decode_s, error)
        errors = {**prediction.errors, f"a few rows on {lane.errs_as}": verifying}
        if prediction.tpot_s < self._plain_s:
            errors["what engines make of a gain"] = ErrorShare(1.0, ENGINE_ERROR)
        return replace(prediction, errors=errors)

    def _error_of_rows(self, lane: str, rows: int) -> float:
        asked, speeds = self._question, self._machine.speeds
        costs = {
            one: RooflineCost(device=speeds[one], target=asked.target, num_devices=len(asked.platform.members(one)))
            for one in self._machine.shares(lane)
            if one in speeds
        }
        start = asked.record.contexts.start
        return self._machine.relative_error(
            lane, {one: few_rows_error(cost, rows, start) for one, cost in costs.items()}
        )


def energy_j_per_token(
    platform: Platform, pair: LanePair, prediction: Prediction, shares: Mapping[str, float] = MappingProxyType({})
) -> float | None:
    """Return joules per token: power while a device computes, and idle power (the sheet's, or a guessed share) else.

    Devices of one package draw its power together, while any of them computes. Devices of a layer split compute for
    their `shares` of the target's time. None where a sheet gives no power.
    """
    draws, watts = dict[str, str](), dict[str, tuple[float, float]]()  # device -> power supply -> (working, idle)
    for member in (*platform.members(pair.target), *pair.drafters(platform)):
        sheet = _powered(platform, member)
        if sheet.power_w is None:
            return None
        draws[member] = name = platform.pool_of(member)[0] if sheet.power_of == "package" else member
        idle_w = IDLE_SHARE.value * sheet.power_w.value if sheet.idle_power_w is None else sheet.idle_power_w.value
        watts[name] = max(watts.get(name, (0.0, 0.0)), (sheet.power_w.value, idle_w))
    of_target = defaultdict[str, float](float)
    for member in platform.members(pair.target):
        of_target[draws[member]] += shares.get(member, 1.0)
    busy_s = {name: min(1.0, share) * prediction.target_busy_s for name, share in of_target.items()}
    drafting_s = prediction.hidden_draft_s + prediction.exposed_draft_s
    for name in {draws[member] for member in pair.drafters(platform)}:
        # Drafting that is hidden behind the target's work on the same power supply draws no further power.
        busy_s[name] = busy_s[name] + prediction.exposed_draft_s if name in busy_s else drafting_s
    joules = (
        working_w * busy_s[name] + idle_w * max(0.0, prediction.decode_s - busy_s[name])
        for name, (working_w, idle_w) in watts.items()
    )
    return sum(joules) / prediction.num_tokens


def _powered(platform: Platform, name: str) -> DeviceSheet:
    """Return the sheet that gives a device's power: its own, or else that of a device of the same package."""
    device = platform.device(name)
    if device.power_w is not None or device.memory_pool is None:
        return device
    chip = (platform.device(one) for one in platform.pool_of(name)[1].devices)
    of_package = (one for one in chip if one.memory_pool == device.memory_pool and one.power_of == "package")
    return next((one for one in of_package if one.power_w is not None), device)


def usd_per_million_tokens(platform: Platform, pair: LanePair, prediction: Prediction) -> float | None:
    """Return the price of the machine (or if unknown, of the devices used) per million tokens, without electricity.

    It is rent, or the purchase price spread over the write-off time; None where a price is not known.
    """
    members = {*platform.members(pair.target), *platform.members(pair.draft)}
    prices = [platform.device(member).usd_per_hour for member in members]
    if platform.usd_per_hour is not None:
        prices = [platform.usd_per_hour]
    known = [price for price in prices if price is not None]
    return sum(known) / 3600 * prediction.tpot_s * 1e6 if len(known) == len(prices) else None
