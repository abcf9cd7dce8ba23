"""The error of a predicted time: seconds * (1 + sum over causes of share * error), with independent errors.

A cause is an error that several times have in common: all times of a profile, of a lane or of a table, or the slowdowns
of a pair of lanes. Its share is the part of the predicted time that it affects. A cause that affects two schedules
equally cancels in the ratio of their times. Only time that rounds wait for counts: hidden drafting has no share.
"""

from collections.abc import Mapping
from math import hypot
from typing import Final, NamedTuple

from costs.durations import DurationFacts
from decoding.schedule import Schedule
from hwprofiles.profile import Profile

ALL_TIMES = "all times"
"""Cause that affects the whole time, including messages and dispatch."""

DRAWS = "the draws of assumed acceptance"
"""Cause that affects the whole time if texts are drawn from assumed rates."""

SAMPLES = "the chance of sampled texts"
"""Cause that affects the whole time if the target sampled the recorded texts. `ratio_error` leaves it out: the spread
of a ratio between prompts, which is accounted for elsewhere, includes it."""


class ErrorShare(NamedTuple):
    """The share of a time that a cause affects, and the relative error (half-width, 90 %) of that share."""

    share: float
    relative_error: float

    @property
    def half_width(self) -> float:
        """Relative half-width (90 %) of the whole time from this cause alone."""
        return self.share * self.relative_error


Errors = Mapping[str, ErrorShare]
"""Error shares by the name of their cause."""
_NOTHING = ErrorShare(0.0, 0.0)
_STRAIGHT: Final = 0.5
"""Relative error up to which the lower end of an interval is 1 - error."""


def relative_error(errors: Errors) -> float:
    """Return the relative half-width (90 %) of a time from independent causes."""
    return hypot(*(one.half_width for one in errors.values()))


def interval(seconds: float, relative_error: float) -> tuple[float, float]:
    """Return the ends of a time's interval. For large errors the lower end falls with 1 / error, to stay above zero."""
    lowest = 1 - relative_error if relative_error <= _STRAIGHT else _STRAIGHT**2 / relative_error
    return seconds * lowest, seconds * (1 + relative_error)


def ratio_error(one: Errors, other: Errors) -> float:
    """Return the half-width (90 %) of the log of the ratio of two times: for each cause the difference of both."""
    return hypot(
        *(
            one.get(cause, _NOTHING).half_width - other.get(cause, _NOTHING).half_width
            for cause in dict.fromkeys((*one, *other))
            if cause != SAMPLES
        )
    )


def own_share(profile: Profile, schedule: Schedule) -> dict[str, ErrorShare]:
    """Return the error of this schedule alone (`Profile.schedule_error`), if the profile has one."""
    if not profile.schedule_error:
        return {}
    name = schedule.model_dump_json(exclude_defaults=True)
    return {f"rounds of {name}": ErrorShare(1.0, profile.schedule_error)}


def error_shares(
    profile: Profile, facts: DurationFacts, *, target_s: float, draft_s: float, both_s: float, total_s: float
) -> dict[str, ErrorShare]:
    """Return the error shares of a schedule's time, by cause.

    `target_s` and `draft_s`: waits for the target (slowdowns included) and for the drafter. `both_s`: time in which
    both compute, affected by the error of their slowdowns. The rest of `total_s` is messages and dispatch.
    """
    plan, shares = facts.plan, {ALL_TIMES: ErrorShare(1.0, profile.common_error)}
    lanes = profile.lane(plan.target_lane), profile.lane(plan.draft_lane)
    target, draft = (lane.errs_as for lane in lanes)
    used = {target: target_s}
    shares[f"target on {target}"] = ErrorShare(target_s / total_s, facts.target_relative_error)
    if plan.step is not None:
        used[draft] = used.get(draft, 0.0) + draft_s
        shares[f"{plan.step} on {draft}"] = ErrorShare(draft_s / total_s, facts.draft_relative_error)
    if error := facts.features_relative_error:
        shares[f"states for {plan.step} from {target}"] = ErrorShare(target_s / total_s, error)
    errors = {lane.errs_as: lane.relative_error for lane in lanes}
    for name, seconds in used.items():
        shares[f"lane {name}"] = ErrorShare(seconds / total_s, errors[name])
    entry = profile.contention_of(plan.target_lane, plan.draft_lane)
    if entry is not None and both_s:
        shares[f"lanes {' and '.join(entry.lanes)} at once"] = ErrorShare(both_s / total_s, entry.relative_error)
    return shares
