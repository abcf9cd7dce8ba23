"""Overheads of a lane: what events of a run take beyond what tables have for their rows, as runs have shown it.

A part that is timed in a loop meets warm caches, works alone and replies to nobody. A run differs, and each way in
which it differs is an event here::

    rollout_start   the first step of a rollout: the target has read its weights meanwhile, so the draft's are cold
    branch_step     every step of branches: it is short, and comes while another lane works
    features        a pass of the target that replies hidden states to whatever drafts
    draft_round     a round with a draft, outside of lanes: waking up, and handing over

`benchmarks/ablations.py` says what each buys. An event of the draft model is called by its name alone, and one of any
other drafter by `event:drafter`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator

from decoding.yaml_file import StrictModel
from hwprofiles.bounds import RelativeError, Seconds

Event = Literal["rollout_start", "branch_step", "features", "draft_round"]

EVENTS: Final[tuple[Event, ...]] = get_args(Event)
EVENTS_OF_DRAFTERS: Final = ("rollout_start", "features")
"""Those that every drafter has for itself."""


class Overhead(StrictModel):
    """Seconds that an event takes, and the half-width (90 %) of what the whole operation may be off by, relative."""

    seconds: Seconds
    relative_error: RelativeError = 0.0


NO_OVERHEAD: Final = Overhead(seconds=0.0)


def overhead_key(event: Event, drafter: str | None = None) -> str:
    """Return what a lane's table calls the event of a drafter; None is the draft model."""
    return event if drafter is None else f"{event}:{drafter}"


def event_of(key: str) -> str:
    """Return the event of a key."""
    return key.partition(":")[0]


def _require_events(overheads: dict[str, Overhead]) -> dict[str, Overhead]:
    for key in overheads:
        event, colon, drafter = key.partition(":")
        if event not in EVENTS or (colon and not (drafter and event in EVENTS_OF_DRAFTERS)):
            known = ", ".join(EVENTS)
            named = " and ".join(f"{event}:DRAFTER" for event in EVENTS_OF_DRAFTERS)
            raise ValueError(f"{key!r} is no event with an overhead: {known}; of a drafter {named}")
    return overheads


Overheads = Annotated[dict[str, Overhead], AfterValidator(_require_events)]
"""Overheads by key, see `overhead_key`."""
