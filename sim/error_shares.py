"""The error of a predicted time: seconds * (1 + sum over causes of share * error), with independent errors.

A cause makes times wrong together (all times of the profile, all of a lane, a table, the slowdowns of a pair); its
share is how much of the time it acts on, so a cause that two schedules share cancels in the ratio of their times.
Shares are what rounds wait for: drafting hidden behind the target has none.
"""

from collections.abc import Mapping
from math import hypot
from typing import Final, NamedTuple

from costs.durations import DurationFacts
from decoding.schedule import Schedule
from hwprofiles.profile import Profile

ALL_TIMES = "all times"
"""The cause that acts on everything, messages and dispatch included."""

DRAWS = "the draws of assumed acceptance"
"""The cause that acts on everything where texts are drawn and not recorded."""

SAMPLES = "the chance of sampled texts"
"""The cause that acts on everything where the target sampled the recorded texts. How prompts differ in the ratio of two
times holds it too, so that it is no error of a ratio's own."""


class ErrorShare(NamedTuple):
    """The share of a time that a cause acts on, and the half-width (90 %) of that share's relative error."""

    share: float
    relative_error: float

    @property
    def half_width(self) -> float:
        """Half-width (90 %) of the whole time for this cause alone, relative."""
        return self.share * self.relative_error


Errors = Mapping[str, ErrorShare]
"""Error shares by the name of their cause."""
_NOTHING = ErrorShare(0.0, 0.0)
_STRAIGHT: Final = 0.5
"""Relative errors up to this one are taken off a time as they are."""


def relative_error(errors: Errors) -> float:
    """Return the half-width (90 %) of a time: causes are independent."""
    return hypot(*(one.half_width for one in errors.values()))


def interval(seconds: float, relative_error: float) -> tuple[float, float]:
    """Return the ends of a time's interval. The lower end stays above zero: far off it falls with 1 / error."""
    lowest = 1 - relative_error if relative_error <= _STRAIGHT else _STRAIGHT**2 / relative_error
    return seconds * lowest, seconds * (1 + relative_error)


def ratio_error(one: Errors, other: Errors) -> float:
    """Return the half-width (90 %) of the log of the ratio of two times: of every cause only the difference is left."""
    return hypot(
        *(
            one.get(cause, _NOTHING).half_width - other.get(cause, _NOTHING).half_width
            for cause in dict.fromkeys((*one, *other))
            if cause != SAMPLES
        )
    )


def own_share(profile: Profile, schedule: Schedule) -> dict[str, ErrorShare]:
    """Return the cause that no other schedule shares, if the profile knows of one."""
    if not profile.schedule_error:
        return {}
    name = schedule.model_dump_json(exclude_defaults=True)
    return {f"rounds of {name}": ErrorShare(1.0, profile.schedule_error)}


def error_shares(
    profile: Profile, facts: DurationFacts, *, target_s: float, draft_s: float, both_s: float, total_s: float
) -> dict[str, ErrorShare]:
    """Return the error shares of a schedule's time, by cause.

    `target_s` and `draft_s` are waits for the target (slowdowns included) and for the drafter; in `both_s` both
    compute, and err as their slowdown does. The rest of `total_s` is messages and dispatch.
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
