"""How much a placement and a window could bring at most, were every drafted token accepted and every draft in time."""

from __future__ import annotations

from decoding.schedule import Schedule
from hwprofiles.profile import Profile


def most_speedup(schedule: Schedule, profile: Profile, plain_tpot_s: float, context: float) -> float:
    """Upper bound of the speed-up over plain decoding.

    A round commits at most one token more than are drafted. In turn it takes a verification and the drafting; at the
    same time it takes the longer of both, each slowed by what the lanes cost each other only while both work: a bound
    leaves that out.

    Raises:
        ProfileError: the profile lacks what the schedule uses.
    """
    target = profile.lane(schedule.target_lane)
    window = schedule.num_speculative_tokens
    verify_s = target.dispatch_s + target.verify_s(profile.num_layers, window + 1, context)
    if not window:
        return plain_tpot_s / verify_s
    draft = profile.lane(str(schedule.draft_lane))
    drafting_s = window * (draft.dispatch_s + draft.draft_s(1, context))
    round_s = max(verify_s, drafting_s) if schedule.traits.overlaps else verify_s + drafting_s
    return (window + 1) * plain_tpot_s / round_s
