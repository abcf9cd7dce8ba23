"""The price of an operation: the seconds that it takes on its lane while no other lane computes.

It is the sum of the calls of model parts and of overheads. `costs.round_plan` says which parts an operation calls, and
the lane's cost model (`costs.cost_model`) what a call costs. Simulation and calibration use the same prices.
"""

from collections.abc import Mapping

import numpy as np

from costs.cost_model import Floats, LaneCost, Part, cost_of
from costs.round_plan import DRAFT_WORK, LAYER, LM_HEAD, operation_calls
from decoding.schedule import Schedule
from decoding.trace import Work
from hwprofiles.lane_profile import NO_OVERHEAD, Overhead
from hwprofiles.profile import Profile


class Prices:
    """Prices on one profile."""

    def __init__(self, profile: Profile, costs: Mapping[str, LaneCost] | None = None) -> None:
        """Take a profile; `costs` replaces the measured costs of the lanes that are its keys."""
        self.profile = profile
        self.costs = {lane.name: cost_of(lane, (costs or {}).get(lane.name)) for lane in profile.lanes}

    def operation_s(
        self, schedule: Schedule, work: Work, rows: int, contexts: Floats, *, is_start: bool = False
    ) -> Floats:
        """Return the seconds of an operation at each context; `is_start` adds `first_step_s`.

        Raises:
            ProfileError: a part was not measured on the lane.
            OutOfRangeError: the part was not measured for these rows or contexts.
        """
        calls = operation_calls(schedule, work, rows, self.profile.num_layers)
        if work not in DRAFT_WORK:
            seconds = _along(self._cost(schedule.target_lane), calls, rows, contexts)
            return seconds + self.pass_overhead_s(schedule, work)
        lane = schedule.draft_lane or schedule.target_lane
        return _along(self._cost(lane), calls, rows, contexts) + (self.first_step_s(schedule) if is_start else 0.0)

    def calls_s(self, lane: str, calls: Mapping[Part, int], rows: float, context: float) -> float:
        """Return the seconds of a number of calls of each part; errors as in `operation_s`."""
        return calls_s(self._cost(lane), calls, rows, context)

    def pass_s(self, lane: str, rows: float, context: float) -> float:
        """Return the seconds of a pass of the whole target without dispatch; errors as in `operation_s`."""
        return pass_s(self._cost(lane), self.profile.num_layers, rows, context)

    def _cost(self, lane: str) -> LaneCost:
        return self.costs[self.profile.lane(lane).name]

    def pass_overhead_s(self, schedule: Schedule, work: Work = Work.VERIFY) -> float:
        """Return the seconds that returning hidden states and taking an exit add to a pass; 0 for a suffix."""
        if work is Work.SUFFIX:
            return 0.0
        exit_s = self.profile.lane(schedule.target_lane).overhead("exit").seconds if work is Work.PREFIX else 0.0
        return exit_s + self.features(schedule).seconds

    def features(self, schedule: Schedule) -> Overhead:
        """Return the overhead of returning hidden states to the schedule's drafter, if it reads them."""
        if not schedule.reads_features:
            return NO_OVERHEAD
        return self.profile.lane(schedule.target_lane).overhead("features", _head(schedule))

    def first_step_s(self, schedule: Schedule) -> float:
        """Return the extra seconds of the first step of a rollout, of branches or of finishing a branch.

        Tables hold times of steps in a row; before a first step the lane did other work.
        """
        if not schedule.traits.has_draft_lane:
            return 0.0
        lane = self.profile.lane(schedule.draft_lane or schedule.target_lane)
        return lane.overhead("first_step", _head(schedule)).seconds


def pass_s(cost: LaneCost, num_layers: int, rows: float, context: float) -> float:
    """Return the seconds of a pass of the whole target without dispatch; errors as in `Prices.operation_s`."""
    return calls_s(cost, {LAYER: num_layers, LM_HEAD: 1}, rows, context)


def calls_s(cost: LaneCost, calls: Mapping[Part, int], rows: float, context: float) -> float:
    """Return the seconds of a number of calls of each part at one context; errors as in `Prices.operation_s`."""
    return float(_along(cost, calls, rows, np.array([context], dtype=np.float64))[0])


def _along(cost: LaneCost, calls: Mapping[Part, int], rows: float, contexts: Floats) -> Floats:
    seconds = (count * cost.seconds(part, rows, contexts) for part, count in calls.items())
    return sum(seconds, start=np.zeros(contexts.shape))


def _head(schedule: Schedule) -> str | None:
    return None if schedule.traits.has_draft_model else schedule.drafter
