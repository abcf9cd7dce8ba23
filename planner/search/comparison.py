"""Whether one schedule is really faster than another: both meet the same machine and the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costs.cost_model import LaneCost
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.paired_ratio import Pairs, Ratio, prompts_error
from sim.error_shares import ratio_error
from sim.evaluator import Evaluator
from sim.prediction import Prediction

Compare = Callable[[Schedule, Schedule], Ratio]
"""The ratio of the second schedule's time to the first one's, by prediction."""


def comparer(profile: Profile, record: AcceptanceRecord, costs: Mapping[str, LaneCost] | None = None) -> Compare:
    """A function that compares one schedule with another on `profile` and `record`; `costs` as in `evaluate`."""
    evaluator = Evaluator(profile, record, costs=costs)
    known: dict[Schedule, Prediction] = {}

    def prediction(schedule: Schedule) -> Prediction:
        if schedule not in known:
            known[schedule] = evaluator.predict(schedule)
        return known[schedule]

    return lambda one, other: ratio_of(prediction(one), prediction(other))


def ratio_of(ours: Prediction, theirs: Prediction) -> Ratio:
    """Return the second prediction's time over the first one's, of the same machine and prompts."""
    return Ratio(
        value=theirs.tpot_s / ours.tpot_s,
        num_pairs=len(ours.prompt_decode_s),
        machine_error=ratio_error(ours.errors, theirs.errors),
        prompts_error=prompts_error(Pairs(ours.prompt_decode_s, theirs.prompt_decode_s)),
    )
