"""Fits levels (times of passes and steps in runs over those in a timing loop), and scales tables by them.

Work of one row and work of several rows have separate levels: they use different kernels, for which the state of caches
in a loop and in a run matters differently.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from math import log
from typing import Final, NamedTuple

import numpy as np

from calibrate.fitting.levels import Level, Prior, settled, shared_levels
from calibrate.profiling.run_times import levels_by_lane
from calibrate.profiling.samples import CalibrationRun
from decoding.trace import Work
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Contention, Profile

Levels = Mapping[str, Level]
"""Levels by lane."""

PASS: Final = Prior(spread=0.01)
"""Prior of target passes. Anchors are passes too: in ten demos passes of whole runs took 0.97 to 1.015 of them."""
STEP: Final = Prior(spread=0.15)
"""Prior of draft steps. They are short, so it matters that the target has evicted the draft's weights from caches."""
_SEVERAL_ROWS: Final = 0.1
"""Relative standard deviation of the level of several rows from that of one row. In five demos of 25 November 2026 it
was up to 10 % in calibrations' runs, and predictions of the demos' texts were off by as much."""
_MOST_APART: Final = 0.25
"""Largest accepted difference of the two levels (of their logarithms): with a larger one, runs do other work than
loops, and the level of several rows is not used."""
_PASSES: Final = (Work.VERIFY, Work.SUFFIX)
"""Work that sets the level of passes; prefixes have an overhead instead."""


class RunLevels(NamedTuple):
    """Levels of target passes and draft steps: of one row, of several rows (`wide_`), and of steps with features."""

    passes: Levels
    wide_passes: Levels
    steps: Levels
    wide_steps: Levels
    features_steps: Levels


def run_levels(
    runs: Sequence[CalibrationRun],
    profile: Profile,
    slowed: Callable[[Levels], tuple[Contention, ...]],
    *,
    apart_by_rows: bool = True,
) -> RunLevels:
    """Return the levels that runs show; levels of one-row passes and of steps come from runs without draft heads.

    Args:
        runs: runs to fit; with features or a head, their passes reply hidden states.
        profile: the profile as timed in loops.
        slowed: returns the contention of lanes for given levels of the draft model's steps.
        apart_by_rows: whether several rows have separate levels (False in ablations).
    """
    heads = [run for run in runs if run.schedule.drafter is not None]
    others = [run for run in runs if run.schedule.drafter is None]
    silent = [run for run in others if not run.schedule.exit_features]
    featured = [run for run in others if run.schedule.exit_features]
    plain = [run for run in silent if run.schedule.num_rows == 1] if apart_by_rows else silent
    # runs with heads are included because they verify more rows: without them, the loop's error at the few rows of
    # draft models' windows would scale the times of all rows
    drafting = [run for run in (*silent, *heads) if run.schedule.num_rows > 1]
    branching = [run for run in silent if run.schedule.traits.overlaps]
    step_ratios = levels_by_lane(silent, (Work.ROLLOUT_STEP,), profile)
    steps = shared_levels(step_ratios, STEP)
    profile = profile.model_copy(update={"contention": slowed(steps)})
    passes = shared_levels(levels_by_lane(plain, _PASSES, profile), PASS)
    # around the level of all lanes' steps: every lane of `steps` may have one that `is_own`
    of_all_lanes = settled([*chain.from_iterable(step_ratios.values())], STEP)
    features_steps = draft_levels(featured, profile, STEP._replace(around=of_all_lanes))
    if not apart_by_rows:
        return RunLevels(passes, passes, steps, steps, features_steps)
    wide_passes = _wide_levels(drafting, _PASSES, profile, passes)
    wide_steps = _wide_levels(branching, (Work.BRANCH_STEP,), profile, steps)
    return RunLevels(passes, wide_passes, steps, wide_steps, features_steps)


def draft_levels(runs: Sequence[CalibrationRun], profile: Profile, prior: Prior = STEP) -> Levels:
    """Return the levels of rollouts' steps."""
    return shared_levels(levels_by_lane(runs, (Work.ROLLOUT_STEP,), profile), prior)


def _wide_levels(runs: Sequence[CalibrationRun], works: Collection[Work], profile: Profile, of_one: Levels) -> Levels:
    """Return the levels of work of several rows; their priors, and levels of lanes without such runs, are `of_one`."""
    levels = dict(of_one)
    for name, ratios in levels_by_lane(runs, works, profile).items():
        found = settled(ratios, Prior(_SEVERAL_ROWS, around=of_one[name]))
        if ratios and abs(log(found.factor / of_one[name].factor)) < _MOST_APART:
            levels[name] = found
    return levels


def at_levels(lane: LaneProfile, levels: RunLevels) -> LaneProfile:
    """Return a lane with its passes, exits and steps scaled by their levels; the levels' errors are added."""
    name = lane.name
    step = levels.steps[name]
    lane = lane.changed(
        dict.fromkeys(("layer", "lm_head", "exit", "streams"), (levels.passes[name], levels.wide_passes[name])),
        _at_rows,
    )
    lane = lane.changed(dict.fromkeys(("draft_step", "draft_start"), (step, levels.wide_steps[name])), _at_rows)
    lane = lane.changed({"draft_streams": step, "draft_step_features": levels.features_steps[name]}, at_level)
    return lane.with_overheads_scaled({"first_step": step.factor})


def at_level(table: LatencyTable, level: Level) -> LatencyTable:
    """Return a table scaled by a level; the level's error is added."""
    return table.scaled(level.factor).less_certain(level.half_width)


def _at_rows(table: LatencyTable, levels: tuple[Level, Level]) -> LatencyTable:
    """Return a table scaled by the levels (of one row, of several rows); several rows take at least as long as one."""
    one, several = levels
    if table.rows[0] > 1:
        return at_level(table, several)
    first, *others = (np.array(line) for line in table.seconds)
    lines = [one.factor * first, *(np.maximum(one.factor * first, several.factor * line) for line in others)]
    seconds = tuple(tuple(line.tolist()) for line in lines)
    return table.model_copy(update={"seconds": seconds}).less_certain(one.half_width)
