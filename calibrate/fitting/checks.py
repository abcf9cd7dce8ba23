"""Checks: compares held-back runs with the profile, to find errors beyond its known ones.

All errors are half-widths (90 %), as in `anchor_errors`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import expm1, hypot, log, sqrt
from statistics import fmean
from typing import Final, NamedTuple

from calibrate.fitting.ratios import NORMAL_90, AnchorRatio, deviation
from costs.prices import Prices
from decoding.schedule import Schedule
from decoding.student_t import t_quantile
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.profile import Profile

_LEAST_CHECKS: Final = 3
_DOUBTFUL: Final = 0.15
"""Checks with a larger error are mentioned in the profile's notes."""

Compared = tuple[AnchorRatio, Mapping[str, float]]
"""A run's measured over its predicted time, and the shares of the predicted time by role and lane (`target cpu0`)."""


class Check(NamedTuple):
    """The comparison of a schedule's held-back runs with the profile.

    Attributes:
        lane: the target's lane.
        residual: log(predicted / measured) at the speed of the runs' anchors.
        model: standard deviation of the prediction, from the errors of its tables.
        chance: standard deviation of the measurement, from its anchors.
    """

    lane: str
    residual: float
    model: float
    chance: float

    @property
    def error(self) -> float:
        """Predicted over measured time, minus 1."""
        return expm1(self.residual)

    @property
    def is_doubtful(self) -> bool:
        """Whether the error is large enough for a note."""
        return abs(self.error) > _DOUBTFUL


class CheckErrors(NamedTuple):
    """Errors that checks show beyond known ones: common to all lanes, of each lane, and of single schedules."""

    common: float
    own: dict[str, float]
    schedules: float


def check_of(schedule: Schedule, compared: Sequence[Compared], profile: Profile, level_error: float = 0.0) -> Check:
    """Return the check of a schedule's runs; `level_error`: common error of the levels of all lanes."""
    return Check(
        lane=schedule.target_lane,
        residual=-fmean(log(ratio.value) for ratio, _ in compared),
        model=hypot(level_error, *_error_parts(profile, schedule, compared[0][1])) / NORMAL_90,
        chance=sqrt(sum(ratio.doubt**2 for ratio, _ in compared)) / len(compared),
    )


def check_errors(checks: Sequence[Check], lanes: Iterable[str]) -> CheckErrors:
    """Return the errors of all checks: means that are not chance, in total and by lane, and the remaining scatter."""
    common = _certain_mean([check.residual for check in checks])
    by_lane = {lane: [check.residual - common for check in checks if check.lane == lane] for lane in lanes}
    own = {lane: _certain_mean(values) for lane, values in by_lane.items()}
    excess = [
        (check.residual - common - own.get(check.lane, 0.0)) ** 2 - check.chance**2 - check.model**2 for check in checks
    ]
    scatter = sqrt(max(0.0, fmean(excess))) if excess else 0.0
    quantile = t_quantile(len(checks) - 1) if len(checks) > 1 else NORMAL_90
    return CheckErrors(abs(common), {lane: abs(value) for lane, value in own.items()}, quantile * scatter)


def note_on(checks: Mapping[Schedule, Check]) -> Iterator[str]:
    """Yield a note on the doubtful checks, if there are any."""
    off = [
        f"{schedule.method} with the target on {schedule.target_lane} {100 * check.error:+.0f} %"
        for schedule, check in checks.items()
        if check.is_doubtful
    ]
    if off:
        yield f"Calibration's own checks are off by more than {100 * _DOUBTFUL:.0f} %: {', '.join(off)}."


def _certain_mean(values: Sequence[float]) -> float:
    """Return the mean if its 90 % interval excludes 0; else, and for fewer than three values, 0."""
    if len(values) < _LEAST_CHECKS:
        return 0.0
    mean = fmean(values)
    return mean if abs(mean) > t_quantile(len(values) - 1) * deviation(values) / sqrt(len(values)) else 0.0


def _error_parts(profile: Profile, schedule: Schedule, shares: Mapping[str, float]) -> Iterator[float]:
    """Yield each relative error that acts on a part of a run's time, times that part's share of the time."""
    for name, share in shares.items():
        role, _, lane = name.partition(" ")
        yield share * _table_error(profile.lane(lane), role, schedule)
        if role == "target":
            yield share * Prices(profile).features(schedule).relative_error
        if role == "draft" and schedule.traits.overlaps:
            yield share * max((entry.relative_error for entry in profile.contention), default=0.0)


def _table_error(lane: LaneProfile, role: str, schedule: Schedule) -> float:
    if role == "target":
        table = lane.layer
    elif schedule.traits.has_draft_model:
        table = lane.draft_step_features if schedule.exit_features else lane.draft_step
    else:
        table = lane.heads.get(schedule.drafter or "")
    return 0.0 if table is None else table.relative_error
