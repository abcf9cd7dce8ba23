"""Whether one schedule is really faster than another: both meet the same prompts, so they are compared in pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import hypot

import numpy as np
from numpy.typing import NDArray

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from sim.evaluator import evaluate
from sim.prediction import DEVIATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The slower schedule's time per token over the faster one's.

    The intervals of two predictions both hold the chance of the prompts, which the two schedules share. Here it is
    counted once, as it acts on the ratio.

    Attributes:
        ratio: at least 1.
        relative_error: sqrt(machine^2 + sampling^2), where *machine* is the profile's own relative error and
            *sampling* 1.96 standard errors of the ratio over prompts (delete-one jackknife). One prompt
            shows nothing of it.
    """

    ratio: float
    relative_error: float

    @property
    def is_measurable(self) -> bool:
        """Whether the ratio's interval leaves no doubt that there is a difference."""
        return self.ratio * (1 - self.relative_error) > 1


Compare = Callable[[Schedule, Schedule], Comparison]


def comparer(profile: Profile, record: AcceptanceRecord) -> Compare:
    """A function that compares two schedules on `profile` and `record`, in either order."""
    known: dict[Schedule, NDArray[np.float64]] = {}

    def by_prompt(schedule: Schedule) -> NDArray[np.float64]:
        if schedule not in known:
            known[schedule] = _seconds_by_prompt(schedule, profile, record)
        return known[schedule]

    def compare(one: Schedule, other: Schedule) -> Comparison:
        faster, slower = sorted((by_prompt(one), by_prompt(other)), key=lambda seconds: float(seconds.sum()))
        sampling = DEVIATIONS * _jackknife(slower, faster)
        return Comparison(
            ratio=float(slower.sum() / faster.sum()), relative_error=hypot(profile.relative_error, sampling)
        )

    return compare


def _seconds_by_prompt(schedule: Schedule, profile: Profile, record: AcceptanceRecord) -> NDArray[np.float64]:
    """Decoding time of every prompt, [prompts]; all schedules commit the same tokens."""
    alone = (replace(record, prompts=(prompt,)) for prompt in record.prompts)
    return np.array([evaluate([schedule], profile, prompt)[0].decode_s for prompt in alone])


def _jackknife(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> float:
    """Relative standard error of sum(numerators) / sum(denominators)."""
    count = len(numerators)
    if count < 2:
        return 0.0
    ratios = (numerators.sum() - numerators) / (denominators.sum() - denominators)
    error = np.sqrt((count - 1) / count * ((ratios - ratios.mean()) ** 2).sum())
    return float(error / ratios.mean())
