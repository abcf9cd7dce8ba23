"""Repeats a plan with some of its numbers changed, to find what would be fastest then.

"Today" means the plan with its original numbers. Only schedules that may win are predicted again: for each method on
each placement, one of every draft length with its best settings today. If the numbers of a schedule's lanes and links
do not change, its time is not predicted again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from typing import Final, Literal, NamedTuple

from decoding.errors import PlanError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.overrides import devices_named, with_overrides
from planner.platform_plan.device_pairs import LanePair, basis_of
from planner.platform_plan.memory_fit import Places, places_of
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.question import Question, demand_of
from planner.platform_plan.schedules import schedules_on
from sim.acceptance.replay import Replay
from sim.derived.derived_profile import CONSTANTS, DerivedProfile, derived_profile
from sim.derived.sheet_numbers import MOVABLE
from sim.evaluator import Evaluator

_NEAR: Final = 1.25
"""Several draft lengths are tried only for ways that take at most this many times as long as the fastest way."""


class Way(NamedTuple):
    """A placement and how it decodes: `plain`, drafting `in turn` with the target, or `at once` (mirror)."""

    pair: LanePair
    kind: Literal["plain", "in turn", "at once"]

    @classmethod
    def of(cls, schedule: Schedule, pair: LanePair) -> "Way":
        """Return the way in which a schedule decodes."""
        if not schedule.num_speculative_tokens:
            return cls(pair, "plain")
        return cls(pair, "at once" if schedule.traits.overlaps else "in turn")

    @property
    def devices(self) -> tuple[object, ...]:
        """A key that is equal for ways that differ only in how many layers of a split are on which device."""
        split = LayerSplit.of(self.pair.target)
        return self.kind, self.pair.in_turn, self.pair.draft, self.pair.target if split is None else split.devices

    def __str__(self) -> str:
        if self.kind == "plain":
            return f"plain decoding on {self.pair.target}"
        return str(self.pair) if self.pair.in_turn else f"{self.pair}, {self.kind}"


@dataclass(frozen=True, slots=True)
class Standing:
    """The time per token of the fastest schedule of each way, including plain decoding."""

    times_s: Mapping[Way, float]

    @property
    def leader(self) -> Way:
        """The fastest way."""
        return min(self.times_s, key=self.times_s.__getitem__)

    @property
    def plain_s(self) -> float:
        """Time per token of the fastest plain decoding."""
        return min(time_s for way, time_s in self.times_s.items() if way.kind == "plain")

    @property
    def speedup(self) -> float:
        """Speed of the fastest speculation over plain decoding; 1 where nothing drafts."""
        return 1.0 if self.speculation is None else self.plain_s / self.times_s[self.speculation]

    @property
    def speculation(self) -> Way | None:
        """The fastest way that drafts; None where nothing does."""
        drafting = (way for way in self.times_s if way.kind != "plain")
        return min(drafting, key=self.times_s.__getitem__, default=None)


class MovedQuestion:
    """Repeats a plan with changed numbers; answers are cached."""

    def __init__(self, plan: PlatformPlan, *, near: float = _NEAR) -> None:
        """Take a plan, whose ranking is today's answer; `near` replaces `_NEAR`."""
        self.plan, self.question, self.near = plan, plan.question, near
        self.today_s = {one.schedule: one.tpot_s for one in plan.ranking if not one.needs_training}
        self.tokens_a_round: dict[Schedule, float] = {}
        self.leader = Way.of(plan.best.schedule, plan.best.pair)
        self._fields = {one.field for one in plan.assumptions}
        self._grouping_today = _grouping(self.question)
        self._record_with = cache(self.question.record_with)
        self._replays: dict[int, Replay] = {}  # by id(record); a replay keeps its record alive, so ids stay unique
        self._known = cache(self._asked)
        self.settings = cache(self._settings_of)
        self.basis_today = cache(partial(basis_of, plan.machine))

    def standing(self, changes: Mapping[str, float] | None = None) -> Standing:
        """Return what is fastest with some numbers changed; `changes` has the names of `--set` and of assumptions.

        Raises:
            MirrorsdError: nothing can be predicted with these numbers.
        """
        return self._known(tuple(sorted((changes or {}).items())))

    def lead_lost(self, there: Standing) -> float:
        """Return how many times as long today's leader takes as the leader of `there`; 1 if it still leads."""
        return there.times_s.get(self.leader, inf) / there.times_s[there.leader]

    def is_like_today(self, way: Way) -> bool:
        """Return whether a way differs from today's leader only in names of devices, or in the layers on each."""
        platform = self.question.platform

        def devices(one: Way) -> tuple[object, ...]:
            members = (platform.members(one.pair.target), platform.members(one.pair.draft))
            names = [[platform.device(member).name for member in own] for own in members]
            return one.kind, one.pair.in_turn, LayerSplit.of(one.pair.target) is None, names

        return devices(way) == devices(self.leader)

    def moved(self, changes: Mapping[str, float]) -> Question:
        """Return the question with some numbers changed; raises what `standing` raises."""
        question, of_parts = self.question, {}
        for field, value in changes.items():
            constants = [field] if field in CONSTANTS else self._movable(field)
            if constants:
                question = replace(question, constants={**question.constants, **dict.fromkeys(constants, value)})
            elif field in self._fields and field.startswith("acceptance."):
                question = replace(question, record=self._record_with(field, value))
            else:
                of_parts[field] = value
        return replace(question, platform=with_overrides(question.platform, of_parts)) if of_parts else question

    def _movable(self, field: str) -> list[str]:
        """Return the numbers of devices that a name of `--set` stands for, if any is among the plan's assumptions."""
        part, _, name = field.rpartition(".")
        if name not in MOVABLE:
            return []
        found = [f"{device}.{name}" for device in devices_named(self.question.platform, part)]
        return found if any(one in self._fields for one in found) else []

    def replay_of(self, record: AcceptanceRecord) -> Replay:
        """Return the replay of a record, which is shared by all changed machines."""
        if id(record) not in self._replays:
            self._replays[id(record)] = Replay(record)
        return self._replays[id(record)]

    def _asked(self, changes: tuple[tuple[str, float], ...]) -> Standing:
        question = self.moved(dict(changes))
        is_grouped_as_today = _grouping(question) == self._grouping_today
        places = self.plan.places if is_grouped_as_today else places_of(question)
        times = _Times(self, question, self._machine(question, places))
        found = {
            Way(LanePair.alone(lane), "plain"): times.of(Schedule(method="autoregressive", target_lane=lane))
            for lane in places.alone
        }
        slowest_s = min(found.values()) * times.most_tokens_a_round()
        slow = {way.pair.target for way, time_s in found.items() if time_s > slowest_s}
        ways = {
            way: schedules
            for pair in places.pairs
            if pair.target not in slow or pair == self.leader.pair
            for way, schedules in self.settings(pair).items()
        }
        found |= {way: times.of(schedules[0]) for way, schedules in ways.items()}
        near_s = self.near * min(found.values())
        for way, schedules in ways.items():
            if found[way] <= near_s or way == self.leader:
                found[way] = times.best_s(schedules)
        found = {way: time_s for way, time_s in found.items() if time_s < inf}
        if not any(way.kind == "plain" for way in found):
            raise PlanError("with these numbers, plain decoding can be predicted on no lane")
        return Standing(found)

    def _machine(self, question: Question, places: Places) -> DerivedProfile:
        """Return the machine of a changed question; today's machine if only the texts have changed."""
        if question.platform is self.question.platform and question.constants is self.question.constants:
            return self.plan.machine
        pairs = frozenset(frozenset(pair[:2]) for pair in places.pairs)
        return derived_profile(question.platform, replace(demand_of(question, places.lanes), pairs=pairs))

    def _settings_of(self, pair: LanePair) -> dict[Way, list[Schedule]]:
        """Return one schedule for every number of rows, by way, today's fastest first.

        Schedules that are not ranked today come last: medium draft lengths and many roots first.
        """
        ranked = self.plan.equal.get(pair, pair)
        lanes = {"target_lane": ranked.target, "draft_lane": ranked.draft}

        def rank(one: Schedule) -> tuple[float, int, int]:
            return self.today_s.get(one.model_copy(update=lanes), inf), abs(one.num_rows - 4), -one.draft_top_k

        asked = schedules_on(pair, self.question, str(self.plan.profile.drafter))
        found: dict[Way, dict[int, Schedule]] = {}
        for one in sorted(asked, key=rank):
            if one.exit_layer is None or self.question.has_exits:
                found.setdefault(Way.of(one, pair), {}).setdefault(one.num_rows, one)
        return {way: list(by_rows.values()) for way, by_rows in found.items()}


def _grouping(question: Question) -> list[object]:
    """Return a key that is equal for questions with the same placements: memory sizes, and which parts are equal."""
    platform, moved = question.platform, [(key.rpartition("."), value) for key, value in question.constants.items()]
    pools = [(pool.devices, pool.model_copy(update={"devices": ()})) for pool in platform.memory_pools.values()]
    devices = [
        (
            device,
            [pool for members, pool in pools if name in members],
            [(field, value) for (part, _, field), value in moved if part == name],
        )
        for name, device in platform.devices.items()
    ]
    links = [link.quantities for link in platform.links]
    rooms = [(device.memory_bytes, device.max_prompt_tokens) for device in platform.devices.values()]
    rooms_of_pools = [pool.memory_bytes for _, pool in pools]
    return [*rooms, *rooms_of_pools, *map(devices.index, devices), *map(links.index, links)]


class _Times:
    """Predicted times on one machine; a schedule whose numbers have not changed keeps today's time."""

    def __init__(self, asked: MovedQuestion, question: Question, machine: DerivedProfile) -> None:
        self._asked, self._machine = asked, machine
        self._evaluator = Evaluator(machine.profile, asked.replay_of(question.record), costs=machine.costs)
        self._is_todays_text = question.record is asked.question.record
        self._today = cache(lambda lanes: basis_of(machine, lanes) == asked.basis_today(lanes))
        self.of = cache(self._tpot_s)

    def _tpot_s(self, schedule: Schedule) -> float:
        """Return seconds per token; infinity if they cannot be predicted."""
        lanes = schedule.target_lane, schedule.draft_lane or schedule.target_lane
        if self._is_todays_text and schedule in self._asked.today_s and self._today(lanes):
            return self._asked.today_s[schedule]
        return inf if self._evaluator.missing(schedule) else self._evaluator.tpot_s(schedule)

    def best_s(self, schedules: list[Schedule]) -> float:
        """Return the best time of one way: try more and fewer rows than the first schedule's until they are slower."""
        best_s, rows = self.of(schedules[0]), schedules[0].num_rows
        up = sorted((one for one in schedules if one.num_rows > rows), key=lambda one: one.num_rows)
        down = sorted((one for one in schedules if one.num_rows < rows), key=lambda one: -one.num_rows)
        for side in (up, down):
            for one in side:
                if self.of(one) >= best_s:
                    break
                best_s = self.of(one)
        return best_s

    def most_tokens_a_round(self) -> float:
        """Return the tokens that a round commits with the longest draft of today's best placement."""
        schedules = [one for own in self._asked.settings(self._asked.leader.pair).values() for one in own]
        longest = max(schedules, key=lambda one: one.num_speculative_tokens, default=None)
        if longest is None or self._evaluator.missing(longest):
            return inf
        known = self._asked.tokens_a_round if self._is_todays_text else {}
        if longest not in known:
            found = self._evaluator.predict(longest)
            known[longest] = found.num_tokens / found.num_rounds
        return known[longest]
