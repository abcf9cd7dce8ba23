"""What the first step of a rollout takes more than later ones: what the target reads takes the draft's place in caches.

A part that is timed in a loop meets warm caches, and so do later steps of a rollout. It takes the same time whatever
the rows of the step, so it counts most for the shortest windows. Levels of steps are settled with it (`decodings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from calibrate.fitting.levels import Level, Prior, grouped_levels
from calibrate.fitting.ratios import Ratio
from calibrate.fitting.table_errors import less_certain
from calibrate.profiling.decodings import first_step
from calibrate.profiling.samples import Run
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import LaneProfile, Profile

_FIRST: Final = Prior(spread=0.3)
_SHORTEST = 2
"""Steps of a rollout that has a first one and a later one: what is not known of the first counts for so many."""


def with_draft_waking(profile: Profile, runs: Sequence[Run], head: str | None, threads: Mapping[str, int]) -> Profile:
    """The profile with what first steps take more, by runs of a head, or of the draft model.

    Lanes of as many `threads` share what no run tells apart.
    """
    tables = {lane.name: _table(lane, head) for lane in profile.lanes}
    found = {
        name: [] if table is None else list(_ratios(runs, name, profile, _step_s(table)))
        for name, table in tables.items()
    }
    levels = grouped_levels(found, threads, dict.fromkeys(threads, _FIRST))
    return profile.model_copy(update={"lanes": tuple(_waking(lane, head, levels[lane.name]) for lane in profile.lanes)})


def _ratios(runs: Sequence[Run], lane: str, profile: Profile, step_s: float) -> Iterator[Ratio]:
    for run in runs:
        if run.schedule.draft_lane == lane and (ratio := first_step(run, lane, profile, step_s)):
            yield ratio


def _waking(lane: LaneProfile, head: str | None, first: Level) -> LaneProfile:
    table = _table(lane, head)
    if table is None:
        return lane
    wake_s = max(0.0, first.factor - 1) * _step_s(table)
    doubt = first.factor * first.half_width / _SHORTEST if wake_s else 0.0
    update: dict[str, Any] = {"draft_wake_s": wake_s} | {
        name: less_certain(getattr(lane, name), doubt) for name in ("draft_step", "draft_step_features")
    }
    if head is not None:
        update = {
            "head_wake_s": lane.head_wake_s | {head: wake_s},
            "heads": lane.heads | {head: less_certain(table, doubt)},
        }
    return lane.model_copy(update=update)


def _table(lane: LaneProfile, head: str | None) -> LatencyTable | None:
    return lane.draft_step if head is None else lane.heads.get(head)


def _step_s(table: LatencyTable) -> float:
    return table.seconds[0][0]
