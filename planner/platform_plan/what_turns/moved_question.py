"""A plan's question with some of its numbers moved: who leads then.

The whole way is gone again, from the platform's numbers to the rounds, for the ways to decode that may win: every
method on every place that fits, by the settings that are its best today. What the moved numbers do not touch keeps its
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Final, Literal, NamedTuple

from costs.cost_model import LaneCost
from decoding.errors import PlanError
from decoding.schedule import Schedule
from hwprofiles.overrides import devices_named, with_overrides
from hwprofiles.platform import Platform
from hwprofiles.profile import Profile
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import Places, places_of
from planner.platform_plan.platform_plan import PlatformPlan, best_of_each, demand_of
from planner.platform_plan.question import Question
from planner.platform_plan.schedules import schedules_on
from sim.derived.derived_profile import CONSTANTS, derived_profile
from sim.derived.device_speed import MOVABLE
from sim.evaluator import Evaluator

_NEAR: Final = 1.25
"""Ways that take no more times as long as the fastest are tried with other windows."""


class Way(NamedTuple):
    """A kind of decoding, and where: `plain`, drafting `in turn`, or `at once` next to the target."""

    pair: LanePair
    kind: Literal["plain", "in turn", "at once"]

    @classmethod
    def of(cls, schedule: Schedule, pair: LanePair) -> Way:
        """That of a schedule."""
        if not schedule.num_speculative_tokens:
            return cls(pair, "plain")
        return cls(pair, "at once" if schedule.traits.overlaps else "in turn")

    def __str__(self) -> str:
        if self.kind == "plain":
            return f"plain decoding on {self.pair.target}"
        return str(self.pair) if self.pair.in_turn else f"{self.pair}, {self.kind}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The fastest time per token of every way that may win, and with which schedule.

    Attributes:
        times_s: by way; plain decoding is among them.
        schedules: of each.
    """

    times_s: Mapping[Way, float]
    schedules: Mapping[Way, Schedule]

    @property
    def leader(self) -> Way:
        """The fastest of all."""
        return min(self.times_s, key=self.times_s.__getitem__)

    @property
    def plain_s(self) -> float:
        """Time per token of the fastest plain decoding."""
        return min(time_s for way, time_s in self.times_s.items() if way.kind == "plain")

    @property
    def drafting(self) -> Way | None:
        """The fastest that drafts."""
        drafting = [way for way in self.times_s if way.kind != "plain"]
        return min(drafting, key=self.times_s.__getitem__, default=None)

    @property
    def speedup(self) -> float:
        """Speed of the fastest that drafts over plain decoding; 1 where nothing does."""
        return 1.0 if self.drafting is None else self.plain_s / self.times_s[self.drafting]


class MovedQuestion:
    """Asks the question of a plan again; answers are kept."""

    def __init__(self, plan: PlatformPlan, *, near: float = _NEAR) -> None:
        """Take the plan, whose ranking has the answer of today; other windows are tried of ways that are so near."""
        self._near = near
        self.plan, self.question = plan, plan.question
        self._fields = {one.field for one in plan.assumptions}
        self._today = {one.schedule: one.tpot_s for one in plan.ranking if not one.needs_training}
        best = plan.best
        self.leader = Way.of(best.schedule, best.pair)
        kept = {one.pair for one in best_of_each(plan.ranking)}
        self._twins = {one.pair for one in plan.ranking} - kept
        self._places_today: Places | None = None
        self._places_today = self._places(self.question)
        self._known: dict[tuple[tuple[str, float], ...], Standing] = {}
        self._record_with = cache(self.question.record_with)
        self.settings = cache(self._settings_of)

    def standing(self, changes: Mapping[str, float] | None = None) -> Standing:
        """Who leads with some numbers moved, by the names that `--set` and assumptions have.

        Raises:
            MirrorsdError: with such numbers nothing can be answered.
        """
        key = tuple(sorted((changes or {}).items()))
        if key not in self._known:
            self._known[key] = self._asked(self.moved(changes or {}))
        return self._known[key]

    def lead_lost(self, there: Standing) -> float:
        """How many times as long today's leader takes as the leader there; 1 where it still leads."""
        return there.times_s.get(self.leader, inf) / there.times_s[there.leader]

    def is_like_today(self, way: Way) -> bool:
        """Whether a way is today's leader but for the names of devices."""
        return self._devices(way) == self._devices(self.leader)

    def _devices(self, way: Way) -> tuple[object, ...]:
        platform = self.question.platform
        members = (platform.members(way.pair.target), platform.members(way.pair.draft))
        return way.kind, way.pair.in_turn, [[platform.device(member).name for member in own] for own in members]

    def moved(self, changes: Mapping[str, float]) -> Question:
        """The question with some numbers moved; errors are those of `standing`."""
        question, platform = self.question, {}
        for field, value in changes.items():
            constants = [field] if field in CONSTANTS else self._movable(field)
            if constants:
                question = replace(question, constants={**question.constants, **dict.fromkeys(constants, value)})
            elif field in self._fields and field.startswith("acceptance."):
                question = replace(question, record=self._record_with(field, value))
            else:
                platform[field] = value
        return replace(question, platform=with_overrides(question.platform, platform)) if platform else question

    def _movable(self, field: str) -> list[str]:
        """Return the numbers of devices by a name that `--set` takes, if these are of what is known of their speed."""
        part, _, name = field.rpartition(".")
        if name not in MOVABLE:
            return []
        found = [f"{device}.{name}" for device in devices_named(self.question.platform, part)]
        return found if any(one in self._fields for one in found) else []

    def _asked(self, question: Question) -> Standing:
        places = self._places(question)
        lanes = dict.fromkeys([*places.alone, *(lane for pair in places.pairs for lane in pair[:2])])
        machine = derived_profile(question.platform, demand_of(question, list(lanes)))
        times = _Times(self, question, machine.profile, machine.costs)
        found: dict[Way, tuple[float, Schedule]] = {}
        for lane in places.alone:
            plain = Schedule(method="autoregressive", target_lane=lane)
            found[Way(LanePair(lane, lane, in_turn=True), "plain")] = times.of(plain), plain
        slowest_s = min(time_s for time_s, _ in found.values()) * times.most_tokens_a_round()
        targets = {way.pair.target for way, (time_s, _) in found.items() if time_s <= slowest_s}
        ways = {
            way: schedules
            for pair in places.pairs
            if pair.target in targets or pair == self.leader.pair
            for way, schedules in self.settings(pair).items()
        }
        for way, schedules in ways.items():
            found[way] = min(((times.of(one), one) for one in schedules[:1]), key=lambda one: one[0])
        near_s = self._near * min(time_s for time_s, _ in found.values())
        for way, schedules in ways.items():
            if found[way][0] <= near_s or way == self.leader:
                found[way] = times.best(schedules)
        found = {way: one for way, one in found.items() if one[0] < inf}
        if not any(way.kind == "plain" for way in found):
            raise PlanError("with such numbers plain decoding can be timed nowhere")
        return Standing(
            times_s={way: time_s for way, (time_s, _) in found.items()},
            schedules={way: schedule for way, (_, schedule) in found.items()},
        )

    def _places(self, question: Question) -> Places:
        """Return where the models fit; of places that are twins today one."""
        if self._places_today is not None and _capacities(question.platform) == _capacities(self.question.platform):
            return self._places_today
        found = places_of(question)
        return replace(found, pairs=tuple(pair for pair in found.pairs if pair not in self._twins))

    def today_s(self, schedule: Schedule) -> float | None:
        """What a schedule takes today; None where it is not ranked."""
        return self._today.get(schedule)

    def _settings_of(self, pair: LanePair) -> dict[Way, list[Schedule]]:
        """Return by way one schedule of every window, that of the fastest today first and the nearest windows next."""
        asked = schedules_on(pair, self.question, str(self.plan.profile.drafter))
        found: dict[Way, dict[int, Schedule]] = {}
        for one in sorted(asked, key=self._rank):
            if one.exit_layer is None or self.question.has_exits:
                found.setdefault(Way.of(one, pair), {}).setdefault(one.num_rows, one)
        return {way: _nearest_first(list(of.values())) for way, of in found.items()}

    def _rank(self, schedule: Schedule) -> tuple[float, int, int]:
        """Order by today's time; those that are not ranked by middling windows and many roots."""
        return self._today.get(schedule, inf), abs(schedule.num_rows - 4), -schedule.draft_top_k


def _nearest_first(schedules: list[Schedule]) -> list[Schedule]:
    """Return the first of some schedules, and the others by how near their windows are to its own."""
    rows = schedules[0].num_rows
    return sorted(schedules, key=lambda one: abs(one.num_rows - rows))


def _capacities(platform: Platform) -> list[object]:
    """Return what decides where models fit."""
    devices = [(device.memory_bytes, device.max_prompt_tokens) for device in platform.devices.values()]
    return [*devices, *(pool.memory_bytes for pool in platform.memory_pools.values())]


class _Times:
    """Predicted times of one machine; today's for what is as it is today."""

    def __init__(
        self, asked: MovedQuestion, question: Question, profile: Profile, costs: Mapping[str, LaneCost]
    ) -> None:
        self._asked, self._profile, self._costs = asked, profile, costs
        self._evaluator = Evaluator(profile, question.record, costs=costs)
        self._is_todays_text = question.record is asked.question.record
        self._alike: dict[tuple[str, str], bool] = {}

    def of(self, schedule: Schedule) -> float:
        """Seconds per token; infinity where it cannot be told."""
        if self._is_todays_text and self._as_today(schedule):
            today_s = self._asked.today_s(schedule)
            if today_s is not None:
                return today_s
        return inf if self._evaluator.missing(schedule) else self._evaluator.predict(schedule).tpot_s

    def best(self, schedules: list[Schedule]) -> tuple[float, Schedule]:
        """The fastest of one way: windows further up and down from the first one, until they are slower."""
        first = schedules[0]
        found = self.of(first), first
        sizes = sorted(schedules, key=lambda one: one.num_rows)
        place = sizes.index(first)
        for side in (sizes[place + 1 :], sizes[:place][::-1]):
            for one in side:
                if (time_s := self.of(one)) >= found[0]:
                    break
                found = time_s, one
        return found

    def most_tokens_a_round(self) -> float:
        """Committed tokens of a round with the widest window that today's best way may have."""
        pair = self._asked.leader.pair
        widest = max(
            (one for schedules in self._asked.settings(pair).values() for one in schedules),
            key=lambda one: one.num_speculative_tokens,
            default=None,
        )
        if widest is None or self._evaluator.missing(widest):
            return inf
        found = self._evaluator.predict(widest)
        return found.num_tokens / found.num_rounds

    def _as_today(self, schedule: Schedule) -> bool:
        """Whether all that a schedule uses is as it is today."""
        lanes = schedule.target_lane, schedule.draft_lane or schedule.target_lane
        if lanes not in self._alike:
            plan = self._asked.plan
            self._alike[lanes] = all(
                one == other
                for one, other in zip(
                    _used(self._profile, self._costs, lanes), _used(plan.profile, plan.costs, lanes), strict=True
                )
            )
        return self._alike[lanes]


def _used(profile: Profile, costs: Mapping[str, LaneCost], lanes: tuple[str, str]) -> Iterator[object]:
    """Yield what schedules on two lanes are timed by."""
    yield profile.round_overhead_s
    yield profile.link(*lanes)
    yield profile.contention_of(*lanes)
    for lane in lanes:
        yield profile.lane(lane) if any(one.name == lane for one in profile.lanes) else None
        yield costs.get(lane)
