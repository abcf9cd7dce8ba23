"""Whether one schedule is really faster than another: both meet the same machine and the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, hypot
from typing import Literal, Self

import numpy as np

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.student_t import t_quantile
from hwprofiles.profile import Profile
from sim.cost.cost_model import Floats
from sim.error_shares import ratio_error
from sim.evaluator import Evaluator
from sim.prediction import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How two schedules compare, by prediction: `one` with an `other`.

    Attributes:
        ratio: time per token of the other over that of one; above 1 one is faster.
        low, high: between them the ratio lies with 90 %, the machine's errors and the chance of the prompts counted.
        machine_error: half-width (90 %) of the ratio's logarithm from what the machine's numbers may be off by, without
            what both schedules share (`sim.error_shares.ratio_error`).
        prompts_error: likewise from the chance of the prompts: whether it would also be so on others of their kind
            (delete-one jackknife, Student's t). One prompt shows nothing of it, which counts as none.
    """

    ratio: float
    low: float
    high: float
    machine_error: float = 0.0
    prompts_error: float = 0.0

    @classmethod
    def of(cls, ratio: float, *, machine_error: float, prompts_error: float) -> Self:
        """With the interval that both errors make together."""
        widest = exp(hypot(machine_error, prompts_error))
        return cls(
            ratio=ratio,
            low=ratio / widest,
            high=ratio * widest,
            machine_error=machine_error,
            prompts_error=prompts_error,
        )

    @property
    def outcome(self) -> Literal["faster", "slower", "cannot tell"]:
        """What is true of one, where the interval leaves no doubt."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "cannot tell"


Compare = Callable[[Schedule, Schedule], Comparison]


def comparer(profile: Profile, record: AcceptanceRecord) -> Compare:
    """A function that compares one schedule with another on `profile` and `record`."""
    evaluator = Evaluator(profile, record)
    known: dict[Schedule, Prediction] = {}

    def prediction(schedule: Schedule) -> Prediction:
        if schedule not in known:
            known[schedule] = evaluator.predict(schedule)
        return known[schedule]

    def compare(one: Schedule, other: Schedule) -> Comparison:
        ours, theirs = prediction(one), prediction(other)
        return Comparison.of(
            theirs.tpot_s / ours.tpot_s,
            machine_error=ratio_error(ours.errors, theirs.errors),
            prompts_error=_prompts_error(theirs.prompt_decode_s, ours.prompt_decode_s),
        )

    return compare


def _prompts_error(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Half-width (90 %) of log(sum(numerators) / sum(denominators)) over prompts; both commit the same tokens."""
    count = len(numerators)
    if count < 2:
        return 0.0
    logs = _logs_without_each(numerators) - _logs_without_each(denominators)
    standard_error = np.sqrt((count - 1) / count * ((logs - logs.mean()) ** 2).sum())
    return t_quantile(count - 1) * float(standard_error)


def _logs_without_each(seconds: Sequence[float]) -> Floats:
    """Logarithms of the sums that leave one prompt out, [prompts]."""
    logs: Floats = np.log(np.sum(seconds) - np.array(seconds))
    return logs
