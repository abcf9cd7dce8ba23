"""Fits a profile to the samples of a calibration; the result depends on the samples and the task only."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from math import hypot
from typing import Final, Literal

from calibrate.fitting.checks import Check, check_errors, check_of, note_on
from calibrate.fitting.levels import Level, not_understood
from calibrate.fitting.ratios import AnchorRatio, anchor_errors, estimate, mean_pace, trimmed_mean
from calibrate.profiling.lane_pairs import contention_of, link_of
from calibrate.profiling.lane_parts import HeadParts, LaneParts
from calibrate.profiling.overhead_fits import STALLS, with_exits, with_features, with_first_steps
from calibrate.profiling.run_levels import PASS, STEP, Levels, at_level, at_levels, draft_levels, run_levels
from calibrate.profiling.run_times import compare_runs, gaps_s
from calibrate.profiling.samples import Samples
from calibrate.profiling.task import CalibrationTask
from decoding.errors import ProfileError
from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.host import describe_host
from hwprofiles.lane_cores import PlacedLane
from hwprofiles.lane_profile import DECODING_PARTS, Event, LaneProfile
from hwprofiles.latency_table import Anchor, LatencyTable
from hwprofiles.profile import Contention, Profile
from runtime.backends.lane_device import Device
from runtime.wire.measurement import Measurement

PACE_ERROR: Final = 0.105
"""Change of a shared machine's speed between its calibration and runs (half-width, 90 %), from sixty schedules in five
demos of 24 November 2026. All 58 schedules in benchmarks/results/demos, which came later, are within it. A calibration
that saw larger changes uses those (`Profile.common_error`)."""
SCHEDULE_ERROR: Final = 0.071
"""Error of a schedule's times beyond that of tables and lanes, including the noise of few runs (half-width, 90 %). It
holds for 90 % of the 72 ratios on the same lanes in the first three series of benchmarks/results/held-out.json (for 64
of them if each series is judged by the other two)."""


Correction = Event | Literal["level_by_rows"]
"""A correction that a fit can leave out: an overhead, or separate levels for work of several rows."""


def fitted_profile(task: CalibrationTask, samples: Samples, *, without: Collection[Correction] = ()) -> Profile:
    """Return the profile fitted to the samples, without the corrections `without` (in ablations).

    Raises:
        ProfileError: the fitted time of a necessary part is zero.
    """
    return _Fit(task, samples, without).profile()


class _Fit:
    def __init__(self, task: CalibrationTask, samples: Samples, without: Collection[Correction]) -> None:
        self._task, self._samples, self._without = task, samples, without
        self._threads = {lane.name: lane.num_threads for lane in task.lanes}
        self._fits = [run for run in samples.runs if not run.is_check]
        self._ratios = defaultdict[tuple[str, str | None], dict[Measurement, list[AnchorRatio]]](dict)
        for cell, own in samples.ratios().items():
            self._ratios[cell.lane, cell.drafter][cell.measurement] = own
        taken = {
            name: [(sample.at_s, sample.seconds) for sample in samples.anchors if sample.lane == name]
            for name in self._threads
        }
        self._anchor_errors = anchor_errors(taken)
        self._anchors = {
            name: Anchor(
                context=task.anchor_context,
                seconds=mean_pace([seconds for _, seconds in own]),
                relative_error=hypot(self._anchor_errors.common, self._anchor_errors.own[name]),
            )
            for name, own in taken.items()
        }

    def profile(self) -> Profile:
        profile = self._with_first_steps(self._in_a_loop(), None)
        levels = run_levels(
            self._fits,
            profile,
            self._contention,
            apart_by_rows="level_by_rows" not in self._without,
        )
        lanes = tuple(at_levels(lane, levels) for lane in profile.lanes)
        profile = profile.model_copy(update={"lanes": lanes, "contention": self._contention(levels.steps)})
        profile = profile.model_copy(update={"round_overhead_s": self._round_overhead_s(profile)})
        profile = self._with_heads_at_level(profile)
        if "exit" not in self._without:
            profile = with_exits(profile, self._samples.runs)
        if "features" not in self._without:
            profile = with_features(profile, self._samples.runs)
        _require_times(profile)
        return self._with_errors(profile, levels.passes, levels.steps)

    def _in_a_loop(self) -> Profile:
        """Return the profile from parts timed in loops only, before anything is fitted to decoded runs."""
        task = self._task
        traffic = task.sizes.part_bytes(task.anchor_context)
        return Profile(
            host=describe_host(Device.of_lane(name).name for name in self._threads),
            target=task.target,
            drafter=task.drafter,
            dtype=task.sizes.dtype,
            num_layers=task.sizes.config.num_layers,
            lanes=tuple(self._lane(lane).changed(traffic, LatencyTable.reading) for lane in task.lanes),
            links=tuple(
                link_of(pair, self._samples.messages_s[pair[1]], task.sizes.feature_width, task.source)
                for pair in task.pairs
                if pair[0] < pair[1]
            ),
            contention=self._contention(dict.fromkeys(self._threads, Level())),
            features_bytes_per_row=task.sizes.features_bytes_per_row,
        )

    def _lane(self, lane: PlacedLane) -> LaneProfile:
        name, anchor = lane.name, self._anchors[lane.name]
        estimates = {of: estimate(own) for of, own in self._ratios[name, None].items()}
        dispatch_s = max(0.0, trimmed_mean(self._samples.dispatch_s[name]))
        tables: dict[str, dict[str, LatencyTable]] = {"heads": {}, "streams": {}, "head_prefill": {}}
        for drafter in self._task.heads:
            found = HeadParts(self._task, drafter).tables(self._ratios[name, drafter], anchor.seconds)
            for part, table in found.items():
                tables[part][drafter] = table
        parts = LaneParts(self._task, lane).profile(estimates, anchor, dispatch_s)
        return parts.model_copy(update=tables)

    def _contention(self, step: Levels) -> tuple[Contention, ...]:
        return tuple(contention_of(pair, self._samples, step[pair[1]], self._task.source) for pair in self._task.pairs)

    def _with_first_steps(self, profile: Profile, head: str | None) -> Profile:
        if "first_step" in self._without:
            return profile
        return with_first_steps(profile, [run for run in self._fits if run.schedule.drafter == head], head)

    def _with_heads_at_level(self, profile: Profile) -> Profile:
        """Return the profile with each draft head's steps, and its overhead of first steps, scaled to their level."""
        for drafter in (name for name, method in self._task.heads.items() if not METHODS[method].drafts_itself):
            profile = self._with_first_steps(profile, drafter)
            found = draft_levels([run for run in self._fits if run.schedule.drafter == drafter], profile)
            lanes = tuple(_with_head_at(lane, drafter, found[lane.name]) for lane in profile.lanes)
            profile = profile.model_copy(update={"lanes": lanes})
        return profile

    def _round_overhead_s(self, profile: Profile) -> float:
        """Return the mean time between two passes of plain decoding beyond the dispatch, over all lanes."""
        plain = [run for run in self._samples.runs if run.schedule.traits.window == "none"]
        beyond = [gap_s - profile.lane(run.schedule.target_lane).dispatch_s for run in plain for gap_s in gaps_s(run)]
        return max(0.0, trimmed_mean(beyond, STALLS)) if beyond else 0.0

    def _with_errors(self, profile: Profile, target: Levels, step: Levels) -> Profile:
        level_error = max((found.half_width for found in target.values() if not found.is_own), default=0.0)
        # compare the runs held back as checks; if there are none, those used for fitting
        compared = compare_runs([run for run in self._samples.runs if run.is_check] or self._samples.runs, profile)
        checks = {schedule: check_of(schedule, runs, profile, level_error) for schedule, runs in compared.items()}
        found = check_errors(list(checks.values()), self._threads)

        def less_certain(lane: LaneProfile) -> LaneProfile:
            level = target[lane.name]
            errors = self._anchor_errors.own[lane.name], found.own[lane.name], level.half_width if level.is_own else 0.0
            lane = lane.changed(dict.fromkeys(DECODING_PARTS, found.schedules), LatencyTable.less_certain)
            return lane.model_copy(update={"relative_error": hypot(*errors)})

        contention = tuple(
            entry.model_copy(update={"relative_error": hypot(entry.relative_error, found.schedules)})
            for entry in profile.contention
        )
        return profile.model_copy(
            update={
                "lanes": tuple(map(less_certain, profile.lanes)),
                "contention": contention,
                "relative_error": hypot(self._anchor_errors.common, level_error, found.common),
                "pace_error": PACE_ERROR,
                "schedule_error": SCHEDULE_ERROR,
                "notes": (*profile.notes, *self._notes(profile, checks, target, step)),
            }
        )

    def _notes(self, profile: Profile, checks: Mapping[Schedule, Check], target: Levels, step: Levels) -> Iterator[str]:
        task, done, wanted = self._task, self._samples.num_passes, self._task.effort.least_passes
        if done < wanted:
            yield (
                f"Calibration had {task.limit_s:g} s, too few here for all repeats: all parts but passes of "
                f"the target were timed {done} of {wanted} times."
            )
        yield from task.left_out
        streams = [name for name, method in task.heads.items() if METHODS[method].drafts_itself]
        if left_out := [
            f"{name} on {lane.name}" for lane in profile.lanes for name in streams if name not in lane.streams
        ]:
            yield f"What streams add was less than the noise, so they are left out: {', '.join(left_out)}."
        yield from not_understood(target, PASS, "Passes in runs", is_kept=True)
        yield from not_understood(step, STEP, "Steps in runs", is_kept=True)
        yield from note_on(checks)


def _with_head_at(lane: LaneProfile, drafter: str, level: Level) -> LaneProfile:
    lane = lane.model_copy(update={"heads": {**lane.heads, drafter: at_level(lane.heads[drafter], level)}})
    start = lane.overhead("first_step", drafter)
    if not start.seconds:
        return lane
    start = start.model_copy(update={"seconds": start.seconds * level.factor})
    return lane.with_overhead("first_step", start, drafter)


def _require_times(profile: Profile) -> None:
    """Raise `ProfileError` if the fitted time of a necessary part is zero, which only noise can cause."""
    for lane in profile.lanes:
        parts = {part: getattr(lane, part) for part in ("layer", "lm_head", "draft_step", "draft_step_features")}
        parts |= {"draft_start": lane.draft_start, **{f"step of {name}": table for name, table in lane.heads.items()}}
        for name, table in parts.items():
            if table is not None and min(map(min, table.seconds)) <= 0:
                raise ProfileError(
                    f"lane {lane.name!r}: {name} came out as costing nothing, so it was noise that was timed; "
                    "calibrate again, with more time or while nothing else runs"
                )
