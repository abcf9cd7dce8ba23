"""Fits the overheads of a profile (`hwprofiles.lane_profile`) to decoded runs: their time beyond the tables.

Lanes share an overhead unless their runs clearly differ. A negative overhead counts as noise. One far beyond its prior
is unexplained: it counts up to `Prior.most`, and the profile's notes say so.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import hypot
from statistics import fmean
from typing import Final

from calibrate.fitting.levels import Level, Prior, more, not_understood, shared_levels
from calibrate.fitting.ratios import trimmed_mean
from calibrate.profiling.run_times import exit_gaps_s, first_step, levels_by_lane, timed_spans
from calibrate.profiling.samples import CalibrationRun
from costs.round_plan import TARGET_WORK
from decoding.trace import Work
from hwprofiles.bounds import SHORTEST_S
from hwprofiles.lane_profile import Event, LaneProfile, Overhead
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile

_FIRST_STEP: Final = Prior(spread=0.3)
_REPLYING: Final = Prior(spread=0.1)
_PREFIXES: Final = frozenset({Work.PREFIX})
STALLS: Final = 0.25
"""Share of the shortest and of the longest times between operations that are left out, as one stall outweighs all."""
_SHORTEST: Final = 2
"""Steps of the shortest rollout with a first and a later step: the error of first steps is spread over them."""

_Runs = Sequence[CalibrationRun]


def with_first_steps(profile: Profile, runs: _Runs, head: str | None) -> Profile:
    """Return the profile with the overhead of first steps, fitted to rollouts of a head or (None) the draft model."""
    tables = {lane.name: lane.draft_step if head is None else lane.heads.get(head) for lane in profile.lanes}
    step_s = {name: table.seconds[0][0] for name, table in tables.items() if table is not None}
    found = {
        name: [ratio for run in runs if (ratio := first_step(run, name, profile, seconds)) is not None]
        for name, seconds in step_s.items()
    }
    levels = shared_levels(found, _FIRST_STEP)
    overheads = {name: _overhead(more(own, _FIRST_STEP) * step_s[name]) for name, own in levels.items()}
    overheads = {name: one for name, one in overheads.items() if one.seconds}

    def less_certain(lane: LaneProfile) -> LaneProfile:
        if lane.name not in overheads:
            return lane
        doubt = levels[lane.name].factor * levels[lane.name].half_width / _SHORTEST
        if head is None:
            return lane.changed(dict.fromkeys(("draft_step", "draft_step_features"), doubt), LatencyTable.less_certain)
        return lane.model_copy(update={"heads": lane.heads | {head: lane.heads[head].less_certain(doubt)}})

    profile = profile.model_copy(update={"lanes": tuple(map(less_certain, profile.lanes))})
    notes = not_understood(levels, _FIRST_STEP, f"First steps of {head or 'the draft'}")
    return _with("first_step", overheads, profile, notes, head)


def with_exits(profile: Profile, runs: _Runs) -> Profile:
    """Return the profile with the overhead of prefixes, fitted to runs that reply no hidden states.

    It is the longer time within the pass (from its level in runs), plus the gap until the suffix starts.
    """
    silent = [run for run in runs if not (run.is_check or run.schedule.reads_features)]
    levels, overheads = shared_levels(levels_by_lane(silent, _PREFIXES, profile), _REPLYING), {}
    for name, own in levels.items():
        if prefixes_s := _alone_s(profile, silent, name, _PREFIXES):
            gaps = [gap_s for run in silent if run.schedule.target_lane == name for gap_s in exit_gaps_s(run)]
            overheads[name] = _overhead(more(own, _REPLYING) * fmean(prefixes_s) + trimmed_mean(gaps, STALLS))
    return _with("exit", overheads, profile, not_understood(levels, _REPLYING, "Passes up to an exit"))


def with_features(profile: Profile, runs: _Runs) -> Profile:
    """Return the profile with the overhead of passes that reply hidden states, for each drafter that reads them."""
    fits = [run for run in runs if not run.is_check]
    for drafter in dict.fromkeys(run.schedule.drafter for run in fits if run.schedule.reads_features):
        profile = _with_features_for(profile, [run for run in fits if run.schedule.drafter == drafter], drafter)
    return profile


def _with_features_for(profile: Profile, runs: _Runs, drafter: str | None) -> Profile:
    """Return the profile with the features overhead of one drafter.

    Runs with features are compared with runs of the same schedule without them, if there are any, because tables may be
    off at just these rows.
    """
    replying = [run for run in runs if run.schedule.reads_features]
    alike = {run.schedule.model_copy(update={"exit_features": False}) for run in replying}
    silent = [run for run in runs if run.schedule in alike and not run.schedule.reads_features]
    found, known = levels_by_lane(replying, TARGET_WORK, profile), dict[str, Level]()
    if silent:
        known = shared_levels(levels_by_lane(silent, TARGET_WORK, profile), _REPLYING)
        found = {name: [one.over(known[name].factor) for one in ratios] for name, ratios in found.items()}
    levels, overheads = shared_levels(found, _REPLYING), {}
    for name, own in levels.items():
        if num_passes := len(_alone_s(profile, replying, name, TARGET_WORK - {Work.SUFFIX})):
            pass_s = sum(_alone_s(profile, replying, name, TARGET_WORK)) / num_passes
            error = hypot(own.half_width, known.get(name, Level()).half_width)
            overheads[name] = _overhead(more(own, _REPLYING) * pass_s, error)
    notes = not_understood(levels, _REPLYING, f"Passes that reply states to {drafter or profile.drafter}")
    return _with("features", overheads, profile, notes, drafter)


def _with(
    event: Event,
    overheads: Mapping[str, Overhead],
    profile: Profile,
    notes: Iterable[str] = (),
    drafter: str | None = None,
) -> Profile:
    lanes = tuple(
        lane.with_overhead(event, overheads[lane.name], drafter) if lane.name in overheads else lane
        for lane in profile.lanes
    )
    return profile.model_copy(update={"lanes": lanes, "notes": (*profile.notes, *notes)})


def _overhead(seconds: float, relative_error: float = 0.0) -> Overhead:
    """Return an overhead; seconds below `SHORTEST_S` become 0."""
    return Overhead(seconds=seconds if seconds >= SHORTEST_S else 0.0, relative_error=relative_error)


def _alone_s(profile: Profile, runs: _Runs, lane: str, works: Collection[Work]) -> list[float]:
    """Return the seconds by the profile of each span of some kinds of work, while other lanes are idle."""
    return [one.alone_s for run in runs for one in timed_spans(run, lane, works, profile)]
