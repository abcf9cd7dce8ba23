"""What every schedule takes and costs on every placement of a platform that it may win on, the fastest first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from costs.cost_model import LaneCost, Part
from costs.prices import Prices
from costs.round_plan import DRAFT_STEP, LAYER, LM_HEAD
from decoding.errors import PlanError
from decoding.schedule import Schedule
from hwprofiles.platform import Platform
from hwprofiles.profile import Profile
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import Places
from planner.platform_plan.question import Question
from planner.platform_plan.schedules import schedules_on
from planner.wording import counted, factor
from sim.derived.derived_profile import DerivedProfile
from sim.error_shares import ErrorShare
from sim.evaluator import Evaluator
from sim.prediction import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSchedule:
    """A schedule on a placement, and what is predicted for it.

    Attributes:
        schedule, pair: itself.
        prediction: of it; among its errors is what nobody measured of verifications of a few rows.
        speedup: time per token of the fastest plain decoding over its own.
        bound: the most that this could be on these lanes with this window.
        memory_bytes: what all memories together have to hold.
        num_devices: how many devices work.
        energy_j_per_token, usd_per_million_tokens: None where sheets do not say enough.
        needs_training: whether it takes an exit that nobody trained for the target, as far as is known.
    """

    schedule: Schedule
    pair: LanePair
    prediction: Prediction
    speedup: float
    bound: float
    memory_bytes: float
    num_devices: int
    energy_j_per_token: float | None
    usd_per_million_tokens: float | None
    needs_training: bool

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        return str(self.pair) if self.schedule.num_speculative_tokens else f"target on {self.pair.target}"

    @property
    def placement(self) -> str:
        """How the models share time: `alone`, `pooled` or `split`."""
        return self.pair.placement if self.schedule.num_speculative_tokens else "alone"

    @property
    def but_for_names(self) -> tuple[object, ...]:
        """What is equal of it and of the same on other devices that are equal."""
        lanes = {"target_lane": "", "draft_lane": self.schedule.draft_lane and ""}
        return self.schedule.model_copy(update=lanes), self.pair.in_turn, self.num_devices, f"{self.tpot_s:.9g}"

    @property
    def tpot_s(self) -> float:
        """Predicted time per token."""
        return self.prediction.tpot_s

    @property
    def tpot_s_low(self) -> float:
        """Lower end of its interval."""
        return self.prediction.tpot_s_low

    @property
    def tpot_s_high(self) -> float:
        """Upper end of its interval."""
        return self.prediction.tpot_s_high

    @property
    def ttft_s(self) -> float | None:
        """Predicted time to the first token."""
        return self.prediction.ttft_s


def ranked(
    question: Question, places: Places, machine: DerivedProfile
) -> tuple[tuple[PlannedSchedule, ...], list[str]]:
    """Return all schedules, the fastest first, and in words what was left out.

    Raises:
        PlanError: plain decoding can be priced nowhere.
    """
    evaluator = Evaluator(machine.profile, question.record, costs=machine.costs)
    alone = [Schedule(method="autoregressive", target_lane=lane) for lane in places.alone]
    plain = {one.target_lane: evaluator.predict(one) for one in alone if evaluator.missing(one) is None}
    if not plain:
        reasons = sorted({str(evaluator.missing(one)) for one in alone})
        raise PlanError(f"{question.target} can be decoded nowhere: {'; '.join(reasons)}")
    found = [
        (one, LanePair(one.target_lane, one.target_lane, in_turn=True)) for one in alone if one.target_lane in plain
    ]
    left_out = Counter[str]()
    drafting = _drafting(question, places, machine.profile)
    slow = _too_slow({lane: one.tpot_s for lane, one in plain.items()}, drafting, evaluator)
    for schedule, pair in drafting:
        reason = slow.get(pair.target) or evaluator.missing(schedule)
        if reason is None:
            found.append((schedule, pair))
        else:
            left_out[reason] += 1
    fastest_s = min(one.tpot_s for one in plain.values())
    memory = _memory_bytes(places)
    priced = [
        _priced(
            question, machine, *one, evaluator.predict(one[0]), fastest_s, memory[one[1], one[0].draft_lane is None]
        )
        for one in found
    ]
    words = [
        reason if reason in slow.values() else f"{counted(count, 'schedule')}: {reason}"
        for reason, count in left_out.items()
    ]
    return tuple(sorted(priced, key=lambda one: one.tpot_s)), words


def _drafting(question: Question, places: Places, profile: Profile) -> list[tuple[Schedule, LanePair]]:
    return [
        (schedule, pair) for pair in places.pairs for schedule in schedules_on(pair, question, str(profile.drafter))
    ]


def _too_slow(
    plain_s: Mapping[str, float], drafting: Sequence[tuple[Schedule, LanePair]], evaluator: Evaluator
) -> dict[str, str]:
    """Lanes on which a target cannot win even if drafting took no time, and why; none where it could win on no other.

    A round takes at least what a token takes in plain decoding, and commits what the widest window does.
    """
    possible = [one for one, _ in drafting if evaluator.missing(one) is None]
    if not possible:
        return {}
    widest = evaluator.predict(max(possible, key=lambda one: one.num_speculative_tokens))
    a_round, fastest_s = widest.num_tokens / widest.num_rounds, min(plain_s.values())
    slow = {
        lane: f"target on {lane}: plain decoding takes {factor(time_s / fastest_s)} as long as on the best lane, and "
        f"a round brings {a_round:.2g} tokens"
        for lane, time_s in plain_s.items()
        if time_s > a_round * fastest_s
    }
    return slow if any(one.target_lane not in slow for one in possible) else {}


def _priced(
    question: Question,
    machine: DerivedProfile,
    schedule: Schedule,
    pair: LanePair,
    prediction: Prediction,
    plain_s: float,
    memory_bytes: float,
) -> PlannedSchedule:
    context = float(question.record.contexts.start)  # the least, as it is a bound
    return PlannedSchedule(
        schedule=schedule,
        pair=pair,
        prediction=with_growth(prediction, machine, schedule),
        speedup=plain_s / prediction.tpot_s,
        bound=most_speedup(schedule, machine.profile, plain_s, context, machine.costs),
        memory_bytes=memory_bytes,
        num_devices=len({*question.platform.members(pair.target), *question.platform.members(pair.draft)}),
        energy_j_per_token=energy_j_per_token(question.platform, pair, prediction),
        usd_per_million_tokens=usd_per_million_tokens(question.platform, pair, prediction),
        needs_training=schedule.exit_layer is not None and not question.has_exits,
    )


def with_growth(prediction: Prediction, machine: DerivedProfile, schedule: Schedule) -> Prediction:
    """Return it with what its verifications may be off by for what nobody measured of a few rows."""
    lane = schedule.target_lane
    if lane not in machine.speeds:
        return prediction  # rows were timed
    error = machine.speeds[lane].growth_error(schedule.num_rows)
    share = ErrorShare(prediction.target_busy_s / prediction.decode_s, error)
    cause = f"a few rows on {machine.profile.lane(lane).errs_as}"
    return replace(prediction, errors={**prediction.errors, cause: share})


def _memory_bytes(places: Places) -> Mapping[tuple[LanePair, bool], float]:
    """Return what all memories of a placement hold together, with the draft and without."""
    found: defaultdict[tuple[LanePair, bool], float] = defaultdict(float)
    for need in places.needs:
        found[need.pair, need.is_plain] += need.needed_bytes
    return found


def energy_j_per_token(platform: Platform, pair: LanePair, prediction: Prediction) -> float | None:
    """Power times the time that devices compute, and idle power (where it is known) for the rest.

    Devices of one package draw its power together, as long as any of them computes. None where a sheet gives no power.
    """
    target_s = prediction.target_busy_s
    draft_s = prediction.hidden_draft_s + prediction.exposed_draft_s
    busy: dict[str, float] = dict.fromkeys(platform.members(pair.target), target_s)
    for member in platform.members(pair.draft):
        # what one device does for both at once is power of one device
        busy[member] = busy[member] + prediction.exposed_draft_s if member in busy else draft_s
    joules, packages = 0.0, dict[str, tuple[float, float]]()
    for member, busy_s in busy.items():
        sheet = platform.device(member)
        if sheet.power_w is None:
            return None
        if sheet.power_of == "package":
            memory, _ = platform.pool_of(member)
            watts, _ = packages.get(memory, (0.0, 0.0))
            packages[memory] = max(watts, sheet.power_w.value), target_s + prediction.exposed_draft_s
            continue
        idle_w = 0.0 if sheet.idle_power_w is None else sheet.idle_power_w.value
        joules += sheet.power_w.value * busy_s + idle_w * max(0.0, prediction.decode_s - busy_s)
    joules += sum(watts * min(busy_s, prediction.decode_s) for watts, busy_s in packages.values())
    return joules / prediction.num_tokens


def usd_per_million_tokens(platform: Platform, pair: LanePair, prediction: Prediction) -> float | None:
    """Rent, or the purchase over its write-off, of the whole machine or of the devices that are used; power is extra.

    None where nobody says what it costs.
    """
    members = {*platform.members(pair.target), *platform.members(pair.draft)}
    prices = [platform.device(member).usd_per_hour for member in members]
    if platform.usd_per_hour is not None:
        prices = [platform.usd_per_hour]
    known = [price for price in prices if price is not None]
    return sum(known) / 3600 * prediction.tpot_s * 1e6 if len(known) == len(prices) else None


def most_speedup(
    schedule: Schedule,
    profile: Profile,
    plain_tpot_s: float,
    context: float,
    costs: Mapping[str, LaneCost] | None = None,
) -> float:
    """Return an upper bound of the speed-up over plain decoding.

    A round commits at most one token more than are drafted. In turn it takes a verification and the drafting, at the
    same time the longer of both. Left out is what lanes cost each other, and all but one dispatch of the draft: a text
    may end with the first round, whose draft is one operation. Streams, and drafting without a model, count as free.

    `costs` replaces the measured cost of the lanes that it names.

    Raises:
        ProfileError: the profile lacks what the schedule uses.
    """
    prices, window = Prices(profile, costs), schedule.num_speculative_tokens

    def seconds(lane: str, calls: Mapping[Part, int], rows: int) -> float:
        return profile.lane(lane).dispatch_s + prices.calls_s(lane, calls, rows, context)

    verify_s = seconds(schedule.target_lane, {LAYER: profile.num_layers, LM_HEAD: 1}, schedule.num_rows)
    drafting_s = 0.0
    if schedule.traits.has_draft_model:
        steps = {Part("draft_step_features") if schedule.exit_features else DRAFT_STEP: schedule.fewest_draft_steps}
        # a step that reads one token more may be measured to take less
        drafting_s = min(seconds(str(schedule.draft_lane), steps, read) for read in (1, 2))
    if not schedule.traits.overlaps:
        return (window + 1) * plain_tpot_s / (verify_s + drafting_s)
    # lanes that were timed together may have been measured to take less so
    gains = (min(1.0, one) for one in profile.slowdown(schedule.target_lane, str(schedule.draft_lane)))
    round_s = max(gain * time_s for gain, time_s in zip(gains, (verify_s, drafting_s), strict=True))
    return (window + 1) * plain_tpot_s / round_s
