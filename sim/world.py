"""The event world: plays a method's own generator over simulated lanes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, cast

from simpy import Environment, Event

from decoding.methods import METHODS
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from sim.acceptance.acceptance_model import Acceptance, Answers
from sim.cost.cost_model import LaneCost
from sim.cost.durations import DurationTables
from sim.evaluator import as_acceptance
from sim.events.contended_lanes import ContendedDraftLane, ContendedTargetLane
from sim.events.free_lanes import DraftLane, TargetLane
from sim.events.shared_machine import SharedMachine
from sim.events.simulated_sequence import Costs, Course, GuessRows


def simulate(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance | AcceptanceRecord,
    *,
    max_new_tokens: int | None = None,
    trace: bool = True,
    costs: Mapping[str, LaneCost] | None = None,
) -> list[Trace]:
    """Play `schedule` on `profile`; one trace per prompt, each from time zero.

    Args:
        schedule: what to play.
        profile: the machine. It must cover every context in which a round could start.
        acceptance: what the models say; a record is replayed.
        max_new_tokens: cut of every sequence.
        trace: whether the traces hold a span for every operation and draft step; rounds are there anyway.
        costs: cost models in place of the profile's tables, by lane.

    Raises:
        ProfileError: the profile lacks what the schedule uses (`OutOfRangeError` where it was not measured so far).
        RecordError: the record does not cover the schedule.
        ConfigError: the schedule does not fit the target, or the acceptance model.
    """
    acceptance = as_acceptance(acceptance)
    tables = DurationTables(profile, acceptance.contexts(max_new_tokens), costs)
    shape = acceptance.shape(schedule)
    lists = Costs.of(schedule, tables.durations(schedule, shape), shape)
    guessing = acceptance.guessing(schedule)
    texts = acceptance.answers(schedule, max_new_tokens)
    rows = [None if guessing is None else partial(guessing.rows, prompt) for prompt in range(len(texts))]
    return [
        _play(schedule, lists, answers, guesses=guesses, has_spans=trace)
        for answers, guesses in zip(texts, rows, strict=True)
    ]


class SimulatedLanes(Course):
    """See `decoding.lanes.Lanes`; handles are SimPy events."""

    __slots__ = ("draft", "target")

    def equip(self) -> None:
        """Give it its lanes; these slow each other if the profile's do."""
        self.target: TargetLane | ContendedTargetLane
        self.draft: DraftLane | ContendedDraftLane
        if self.costs.can_contend:
            machine = SharedMachine(self)
            self.target, self.draft = ContendedTargetLane(self, machine), ContendedDraftLane(self, machine)
        else:
            self.target, self.draft = TargetLane(self), DraftLane(self)

    def finish(self) -> None:
        """The sequence has ended."""
        self.draft.finish()


def _play(schedule: Schedule, costs: Costs, answers: Answers, *, guesses: GuessRows | None, has_spans: bool) -> Trace:
    env = Environment()
    lanes = SimulatedLanes(env, schedule, costs, answers, guesses=guesses, has_spans=has_spans)
    lanes.equip()
    flow = METHODS[schedule.method](lanes, schedule)
    env.process(cast("Generator[Event, Any, None]", flow))
    env.run()
    return lanes.trace
