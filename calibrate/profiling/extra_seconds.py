"""What work takes in runs beyond what its tables have, whatever its rows: what runs tell and no loop does.

- The first step of a rollout takes more than later ones: what the target has read took the draft's place in caches.
  Levels of steps are settled with it (`decodings`).
- Every step of branches takes more than one of a rollout: it is short, and comes while another lane works.
- A pass of the target takes more if it replies its states to a drafter.
- Where lanes work at once, the pace of the draft's steps next to the target's pass differs from round to round.

A part that is timed in a loop meets warm caches and replies to nobody. What comes out as less than nothing is noise.
What is far beyond the usual is not understood: no more than a bound is counted, and the profile's notes say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import hypot
from statistics import fmean
from typing import Any, Final

import numpy as np

from calibrate.fitting.levels import Level, Prior, grouped_levels, more, not_understood, shared_levels
from calibrate.fitting.ratios import NORMAL_90, Ratio, trimmed_mean
from calibrate.fitting.table_errors import less_certain
from calibrate.profiling.decodings import (
    TARGET_WORK,
    alone_s,
    draft_over_target,
    first_step,
    level,
    outside_s,
    resized_step,
    starts_branches,
)
from calibrate.profiling.samples import Run
from decoding.trace import Work
from hwprofiles.bounds import MOST_PACE_SPREAD
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import LaneProfile, Profile

_FIRST: Final = Prior(spread=0.3)
_RESIZED: Final = Prior(spread=0.15)
_OF_BRANCHES: Final = Prior(spread=0.3)
_OF_FEATURES: Final = Prior(spread=0.03)
_BRANCHING: Final = frozenset({Work.BRANCH_STEP})
_STALLS: Final = 0.25
"""Share of the times between operations, of either end, that are left out: one stall is longer than all others."""
_SHORTEST = 2
"""Steps of a rollout that has a first one and a later one: what is not known of the first counts for so many."""


def with_resizing(profile: Profile, runs: Sequence[Run], threads: Mapping[str, int]) -> Profile:
    """The profile with what steps take more after ones of other rows, by runs of the draft model."""
    found = {
        lane.name: []
        if lane.draft_step is None
        else list(_of_resized_steps(runs, lane.name, profile, _step_s(lane.draft_step)))
        for lane in profile.lanes
    }
    levels = grouped_levels(found, threads, dict.fromkeys(threads, _RESIZED))
    lanes = tuple(
        lane
        if lane.draft_step is None
        else lane.model_copy(update={"resize_s": more(levels[lane.name], _RESIZED) * _step_s(lane.draft_step)})
        for lane in profile.lanes
    )
    return _told(profile, lanes, not_understood(levels, _RESIZED, "Steps after ones of other rows"))


def _of_resized_steps(runs: Sequence[Run], lane: str, profile: Profile, step_s: float) -> Iterator[Ratio]:
    for run in runs:
        if run.schedule.draft_lane == lane and (ratio := resized_step(run, lane, profile, step_s)):
            yield ratio


def with_draft_waking(profile: Profile, runs: Sequence[Run], head: str | None, threads: Mapping[str, int]) -> Profile:
    """The profile with what first steps take more, by runs of a head, or of the draft model.

    Lanes of as many `threads` share what no run tells apart.
    """
    tables = {lane.name: _table(lane, head) for lane in profile.lanes}
    found = {
        name: [] if table is None else list(_of_first_steps(runs, name, profile, _step_s(table)))
        for name, table in tables.items()
    }
    levels = grouped_levels(found, threads, dict.fromkeys(threads, _FIRST))
    lanes = tuple(_waking(lane, head, levels[lane.name]) for lane in profile.lanes)
    return _told(profile, lanes, not_understood(levels, _FIRST, f"First steps of {head or 'the draft'}"))


def with_turns(profile: Profile, runs: Sequence[Run], threads: Mapping[str, int]) -> Profile:
    """The profile with what rounds take more outside of lanes where these draft, by runs in which lanes take turns.

    Lanes of as many `threads` share it where a lane had no such run. What features cost on their way is the link's.
    """
    found = {lane.name: [one for run in runs for one in _turns(run, lane.name, profile)] for lane in profile.lanes}
    alike = {
        count: [one for name, own in found.items() if threads[name] == count for one in own]
        for count in threads.values()
    }
    lanes = []
    for lane in profile.lanes:
        known = found[lane.name] or alike[threads[lane.name]]
        turn_s = max(0.0, trimmed_mean(known, _STALLS)) if known else 0.0
        lanes.append(lane.model_copy(update={"turn_s": turn_s}))
    return profile.model_copy(update={"lanes": tuple(lanes)})


def with_pace_spread(profile: Profile, runs: Sequence[Run], threads: Mapping[str, int]) -> Profile:
    """The profile with how much the pace of branches' steps differs from round to round: alike on as many `threads`."""
    found = defaultdict[int, list[float]](list)
    for lane in profile.lanes:
        found[threads[lane.name]] += _pace_changes(runs, lane.name, profile)
    lanes = tuple(lane.model_copy(update={"pace_spread": _spread(found[threads[lane.name]])}) for lane in profile.lanes)
    return profile.model_copy(update={"lanes": lanes})


def _pace_changes(runs: Sequence[Run], lane: str, profile: Profile) -> Iterator[float]:
    """Logarithms of the pace of every round over that of its run."""
    for run in runs:
        if run.schedule.traits.overlaps and run.schedule.draft_lane == lane:
            paces = np.log(draft_over_target(run, profile))
            yield from (paces - np.median(paces)).tolist() if len(paces) else ()


def _spread(changes: Sequence[float]) -> float:
    """Standard deviation of what nine of ten rounds show: the others hold stalls."""
    if not changes:
        return 0.0
    low, high = np.percentile(changes, (5, 95))
    return min(MOST_PACE_SPREAD, float(high - low) / (2 * NORMAL_90))


def _turns(run: Run, lane: str, profile: Profile) -> list[float]:
    schedule = run.schedule
    crosses = schedule.reads_features and not schedule.is_pooled
    if schedule.draft_lane != lane or schedule.traits.overlaps or crosses:
        return []
    link = None if schedule.is_pooled else profile.link(schedule.target_lane, lane)
    known_s = profile.lane(schedule.target_lane).dispatch_s + profile.lane(lane).dispatch_s + profile.round_overhead_s
    known_s += 2 * link.latency_s if link is not None else 0.0
    return [seconds - known_s for seconds in outside_s(run)]


def with_start_waking(profile: Profile, runs: Sequence[Run], threads: Mapping[str, int]) -> Profile:
    """The profile with what steps take more that read the window with features and start branches."""
    featured = [run for run in runs if run.schedule.exit_features]
    levels = grouped_levels(_levels(profile, featured, _BRANCHING), threads, dict.fromkeys(threads, _OF_BRANCHES))
    lanes = tuple(_starting(lane, levels[lane.name], featured, profile) for lane in profile.lanes)
    return _told(profile, lanes, not_understood(levels, _OF_BRANCHES, "Steps that start branches with features"))


def _starting(lane: LaneProfile, found: Level, runs: Sequence[Run], profile: Profile) -> LaneProfile:
    """What all steps of these branches take more is that of their first ones: the others are priced already."""
    seconds = sum(one for run in runs for one in alone_s(run, lane.name, _BRANCHING, profile))
    num_starts = sum(
        starts_branches(run.schedule, span)
        for run in runs
        for span in run.trace.spans
        if span.lane == lane.name and span.round
    )
    if not num_starts:
        return lane
    more_s = more(found, _OF_BRANCHES) * seconds / num_starts
    table = less_certain(lane.draft_start, found.half_width)
    return lane.model_copy(update={"start_wake_s": more_s, "draft_start": table})


def with_branch_waking(profile: Profile, runs: Sequence[Run], threads: Mapping[str, int]) -> Profile:
    """The profile with what steps of branches take more than its tables have, by runs of the draft model.

    Lanes of as many `threads` share what no run tells apart, relative to their own steps; a lane that has no branches
    in any run has none at all.
    """
    plain = [run for run in runs if not run.schedule.exit_features]
    levels = grouped_levels(_levels(profile, plain, _BRANCHING), threads, dict.fromkeys(threads, _OF_BRANCHES))
    lanes = tuple(_branching(lane, levels[lane.name], plain, profile) for lane in profile.lanes)
    return _told(profile, lanes, not_understood(levels, _OF_BRANCHES, "Steps of branches"))


def with_features(profile: Profile, runs: Sequence[Run], drafter: str) -> Profile:
    """The profile with what passes take more that reply their states to a drafter, by its runs.

    Lanes share what no run tells apart, relative to their own passes; a lane that replied to nobody has none at all.
    Runs that differ in nothing else are compared with each other: a table may be off at just their rows.
    """
    replying = [run for run in runs if run.schedule.reads_features]
    alike = {run.schedule.model_copy(update={"exit_features": False}) for run in replying}
    silent = [run for run in runs if run.schedule in alike and not run.schedule.reads_features]
    found = _levels(profile, replying, TARGET_WORK)
    known = (
        shared_levels(_levels(profile, silent, TARGET_WORK), _OF_FEATURES) if silent else dict.fromkeys(found, Level())
    )
    relative = {name: [one.over(known[name].factor) for one in ratios] for name, ratios in found.items()}
    levels = {
        name: own._replace(half_width=hypot(own.half_width, known[name].half_width))
        for name, own in shared_levels(relative, _OF_FEATURES).items()
    }
    lanes = tuple(_replying(lane, drafter, levels[lane.name], replying, profile) for lane in profile.lanes)
    return _told(profile, lanes, not_understood(levels, _OF_FEATURES, f"Passes that reply states to {drafter}"))


def _told(profile: Profile, lanes: Sequence[LaneProfile], notes: Iterable[str]) -> Profile:
    """The profile with other lanes, and with what is to be said of them."""
    return profile.model_copy(update={"lanes": tuple(lanes), "notes": (*profile.notes, *notes)})


def _levels(profile: Profile, runs: Sequence[Run], works: Collection[Work]) -> dict[str, list[Ratio]]:
    """`level` of every run that has such work on a lane, by lane."""
    found = {lane.name: [level(run, lane.name, works, profile) for run in runs] for lane in profile.lanes}
    return {name: [ratio for ratio in ratios if ratio is not None] for name, ratios in found.items()}


def _branching(lane: LaneProfile, found: Level, runs: Sequence[Run], profile: Profile) -> LaneProfile:
    steps_s = [seconds for run in runs for seconds in alone_s(run, lane.name, _BRANCHING, profile)]
    if not steps_s:
        return lane
    more_s = more(found, _OF_BRANCHES) * fmean(steps_s)
    return lane.model_copy(update={"branch_wake_s": more_s, "branch_error": found.half_width})


def _replying(lane: LaneProfile, drafter: str, found: Level, runs: Sequence[Run], profile: Profile) -> LaneProfile:
    seconds = sum(one for run in runs for one in alone_s(run, lane.name, TARGET_WORK, profile))
    num_passes = sum(len(alone_s(run, lane.name, TARGET_WORK - {Work.SUFFIX}, profile)) for run in runs)
    if not num_passes:
        return lane
    more_s = more(found, _OF_FEATURES) * seconds / num_passes
    return lane.model_copy(
        update={
            "features_s": lane.features_s | {drafter: more_s},
            "features_error": lane.features_error | {drafter: found.half_width},
        }
    )


def _of_first_steps(runs: Sequence[Run], lane: str, profile: Profile, step_s: float) -> Iterator[Ratio]:
    for run in runs:
        if run.schedule.draft_lane == lane and (ratio := first_step(run, lane, profile, step_s)):
            yield ratio


def _waking(lane: LaneProfile, head: str | None, first: Level) -> LaneProfile:
    table = _table(lane, head)
    if table is None:
        return lane
    wake_s = more(first, _FIRST) * _step_s(table)
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
