"""A profile from the samples of a calibration: a function of them and of what was asked for, and of nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import expm1, hypot
from typing import Final

from calibrate.fitting.anchor_errors import anchor_errors
from calibrate.fitting.checks import Check, check_errors, check_of, note_on
from calibrate.fitting.levels import Level, Prior, grouped_levels, not_understood, shared_levels
from calibrate.fitting.links import link_of
from calibrate.fitting.ratios import Estimate, Ratio, estimate, mean_pace, trimmed_mean
from calibrate.fitting.table_errors import at_level, with_check_errors, with_head_level
from calibrate.profiling.lane_pairs import contention_of
from calibrate.profiling.overhead_fits import (
    OVERHEAD_FITS,
    with_pace_spread,
    with_passes_after_wait,
    with_rollout_starts,
)
from calibrate.profiling.run_times import compare_runs, gaps_s, level
from calibrate.profiling.samples import Cell, Run, Samples
from calibrate.profiling.task import CalibrationTask
from decoding.errors import ProfileError
from decoding.schedule import Schedule
from decoding.trace import Work
from hwprofiles.host import describe_host
from hwprofiles.lane_profile import Event
from hwprofiles.profile import Anchor, LaneProfile, LatencyTable, Profile
from runtime.backends.lane_device import Device
from runtime.wire.measurement import Measurement

_TARGET: Final = Prior(spread=0.01)
"""An anchor is a pass of the target: in ten demos passes of whole runs took 0.97 to 1.015 of their anchors."""
_STEP: Final = Prior(spread=0.15)
"""A draft's steps are short: what the target left of the caches tells."""
_STALLS: Final = 0.25
"""Share of the gaps between operations, of either end, that are left out: one stall is longer than all others."""
SCHEDULE_ERROR: Final = 0.044
"""What a schedule's times are off by beyond what tables and lanes explain, the luck of four short runs included: from
ratios on the same lanes in the five demos of benchmarks/results/demos. Taken from four of them, 83 % of the fifth's
ratios are within it, without it 58 %."""


def fitted_profile(task: CalibrationTask, samples: Samples, *, without: Collection[Event] = ()) -> Profile:
    """Return the profile that the samples amount to; `without` are overheads to be left out, to see what they buy.

    Raises:
        ProfileError: a part that every schedule needs came out as costing nothing.
    """
    return _Fit(task, samples, without).profile()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Levels:
    """What work takes in runs over what it takes in a loop, by lane: the target's, and steps of the draft model."""

    target: Mapping[str, Level]
    step: Mapping[str, Level]
    features_step: Mapping[str, Level]


class _Fit:
    def __init__(self, task: CalibrationTask, samples: Samples, without: Collection[Event]) -> None:
        self._task, self._samples, self._without = task, samples, without
        self._names = [lane.name for lane in task.lanes]
        self._threads = {lane.name: lane.num_threads for lane in task.lanes}
        self._ratios = _by_lane(samples.ratios())
        self._estimates = {key: {of: estimate(own) for of, own in found.items()} for key, found in self._ratios.items()}
        taken = {
            name: [(sample.at_s, sample.seconds) for sample in samples.anchors if sample.lane == name]
            for name in self._names
        }
        self._anchor_errors = anchor_errors(taken)
        self._anchors = {
            name: Anchor(
                context=task.lane_parts.anchor_context,
                seconds=mean_pace([seconds for _, seconds in taken[name]]),
                relative_error=hypot(self._anchor_errors.common, self._anchor_errors.own[name]),
            )
            for name in self._names
        }

    @cached_property
    def _step_anchors(self) -> dict[str, Anchor]:
        """Of the lanes on which a draft model drafted: relative to those of the target in the same runs."""
        found = defaultdict[str, list[Ratio]](list)
        for run in self._samples.runs:
            if (lane := run.schedule.draft_lane) is not None and run.anchors.steps:
                found[lane].append(run.against_anchors(lane, mean_pace(run.anchors.steps)))
        return {lane: self._step_anchor(self._anchors[lane], estimate(ratios)) for lane, ratios in found.items()}

    def _step_anchor(self, anchor: Anchor, over_it: Estimate) -> Anchor:
        error = hypot(anchor.relative_error, expm1(over_it.log_half_width))
        return Anchor(context=anchor.context, seconds=over_it.value * anchor.seconds, relative_error=error)

    def profile(self) -> Profile:
        left_out: list[str] = []
        profile = self._with_passes_after_wait(self._in_a_loop(left_out))
        profile = self._with_rollout_starts(profile, None)
        levels = self._levels(profile)
        profile = self._with_heads_at_level(self._at_level(profile, levels))
        for event, fit in OVERHEAD_FITS.items():
            if event not in self._without:
                profile = fit(profile, self._samples.runs, self._threads)
        profile = with_pace_spread(profile, self._samples.runs, self._threads)
        _require_times(profile)
        return self._with_errors(profile, levels, left_out)

    def _in_a_loop(self, left_out: list[str]) -> Profile:
        """Everything as timed alone, with slowdowns that know nothing of runs."""
        task = self._task
        traffic = task.sizes.part_bytes(sum(task.contexts) // 2)
        return Profile(
            host=describe_host(Device.of_lane(name).name for name in self._names),
            target=task.target,
            drafter=task.drafter,
            dtype=task.sizes.dtype,
            num_layers=task.sizes.config.num_layers,
            lanes=tuple(self._lane(lane.name, left_out).changed(traffic, _reading) for lane in task.lanes),
            links=tuple(
                link_of(pair, self._samples.messages_s[pair[1]], task.sizes.feature_width, task.source)
                for pair in task.pairs
                if pair[0] < pair[1]
            ),
            contention=tuple(contention_of(pair, self._samples, Level(), task.source) for pair in task.pairs),
            features_bytes_per_row=task.sizes.features_bytes_per_row,
        )

    def _lane(self, name: str, left_out: list[str]) -> LaneProfile:
        task, anchor = self._task, self._anchors[name]
        estimates = self._estimates[name, None]
        spec = next(lane for lane in task.lanes if lane.name == name)
        dispatch_s = max(0.0, trimmed_mean(self._samples.dispatch_s[name]))
        lane = task.lane_parts.on(name).profile(spec, estimates, anchor, dispatch_s)
        heads, streams, prefills = dict[str, LatencyTable](), dict[str, LatencyTable](), dict[str, LatencyTable]()
        for head in task.head_parts:
            ratios = self._ratios[name, head.drafter]
            if head.has_streams:
                table = head.streams_table(ratios, anchor.seconds)
                if table is None:
                    left_out.append(f"{head.drafter} on {name}")
                else:
                    streams[head.drafter] = table
                continue
            found = self._estimates[name, head.drafter]
            heads[head.drafter] = head.table(found, anchor.seconds)
            prefill = head.prefill_table(found, anchor.seconds)
            if prefill is not None:
                prefills[head.drafter] = prefill
        return lane.model_copy(
            update={
                "heads": heads,
                "streams": streams,
                "head_prefill": prefills,
                "step_anchor": self._step_anchors.get(name),
            }
        )

    def _levels(self, profile: Profile) -> _Levels:
        fits = [run for run in self._samples.runs if not run.is_check]
        runs = [run for run in fits if run.schedule.drafter is None]
        plain = [run for run in runs if not run.schedule.exit_features]
        featured = [run for run in runs if run.schedule.exit_features]
        alone = [run for run in fits if not run.schedule.reads_features]
        step = self._draft_levels(plain, profile)
        # slowdowns are relative to what steps take in runs: known once these are
        profile = profile.model_copy(update={"contention": self._contention(step)})
        target_work = (Work.VERIFY, Work.PREFIX, Work.SUFFIX)
        return _Levels(
            target=shared_levels(self._levels_by_lane(alone, target_work, profile), _TARGET),
            step=step,
            features_step=self._draft_levels(featured, profile, around=step),
        )

    def _draft_levels(
        self, runs: Sequence[Run], profile: Profile, *, around: Mapping[str, Level] | None = None
    ) -> dict[str, Level]:
        """Return levels of steps of rollouts, taken to be `around` others before any run."""
        found = self._levels_by_lane(runs, (Work.ROLLOUT_STEP,), profile)
        priors = {name: _STEP._replace(around=around[name]) if around else _STEP for name in self._names}
        return grouped_levels(found, self._threads, priors)

    def _levels_by_lane(self, runs: Sequence[Run], works: Collection[Work], profile: Profile) -> dict[str, list[Ratio]]:
        found = {
            name: [
                level(run, name, works, profile)
                for run in runs
                if name in (run.schedule.target_lane, run.schedule.draft_lane)
            ]
            for name in self._names
        }
        return {name: [ratio for ratio in ratios if ratio is not None] for name, ratios in found.items()}

    def _contention(self, step: Mapping[str, Level]) -> tuple[object, ...]:
        return tuple(contention_of(pair, self._samples, step[pair[1]], self._task.source) for pair in self._task.pairs)

    def _with_passes_after_wait(self, profile: Profile) -> Profile:
        if "pass_after_wait" in self._without:
            return profile
        rested = self._task.lane_parts.pass_after_wait
        return with_passes_after_wait(profile, {name: self._ratios[name, None].get(rested, []) for name in self._names})

    def _with_rollout_starts(self, profile: Profile, head: str | None) -> Profile:
        if "rollout_start" in self._without:
            return profile
        return with_rollout_starts(profile, list(self._samples.runs_of(head, is_check=False)), head, self._threads)

    def _at_level(self, profile: Profile, levels: _Levels) -> Profile:
        def levelled(lane: LaneProfile) -> LaneProfile:
            target, step, features_step = (one[lane.name] for one in (levels.target, levels.step, levels.features_step))
            lane = lane.scaled(dict.fromkeys(("layer", "lm_head", "exit", "streams"), target.factor))
            lane = at_level(lane, ("draft_step", "draft_start", "draft_streams"), step)
            lane = at_level(lane, ("draft_step_features",), features_step)
            return lane.with_overheads_scaled({"rollout_start": step.factor})

        lanes = tuple(map(levelled, profile.lanes))
        profile = profile.model_copy(update={"lanes": lanes, "contention": self._contention(levels.step)})
        return profile.model_copy(update={"round_overhead_s": self._round_overhead_s(profile)})

    def _with_heads_at_level(self, profile: Profile) -> Profile:
        for drafter in (head.drafter for head in self._task.head_parts if not head.has_streams):
            profile = self._with_rollout_starts(profile, drafter)
            runs = list(self._samples.runs_of(drafter, is_check=False))
            found = self._draft_levels(runs, profile)
            lanes = tuple(with_head_level(lane, drafter, found[lane.name]) for lane in profile.lanes)
            profile = profile.model_copy(update={"lanes": lanes})
        return profile

    def _round_overhead_s(self, profile: Profile) -> float:
        """What lies between two verifications of plain decoding beyond the dispatch, over all lanes."""
        plain = [run for run in self._samples.runs if run.schedule.traits.window == "none"]
        beyond = [gap_s - profile.lane(run.schedule.target_lane).dispatch_s for run in plain for gap_s in gaps_s(run)]
        return max(0.0, trimmed_mean(beyond, _STALLS)) if beyond else 0.0

    def _with_errors(self, profile: Profile, levels: _Levels, left_out: Sequence[str]) -> Profile:
        level_error = max((found.half_width for found in levels.target.values() if not found.is_own), default=0.0)
        checks = self._checks(profile, level_error)
        found = check_errors(list(checks.values()), self._names)
        contention = tuple(
            entry.model_copy(update={"relative_error": hypot(entry.relative_error, found.schedules)})
            for entry in profile.contention
        )
        own = {name: target.half_width if target.is_own else 0.0 for name, target in levels.target.items()}
        own = {name: hypot(self._anchor_errors.own[name], found.own[name], error) for name, error in own.items()}
        return profile.model_copy(
            update={
                "lanes": tuple(with_check_errors(lane, own[lane.name], found.schedules) for lane in profile.lanes),
                "contention": contention,
                "relative_error": hypot(self._anchor_errors.common, level_error, found.common),
                "schedule_error": SCHEDULE_ERROR,
                "notes": (*profile.notes, *self._notes(checks, levels, left_out)),
            }
        )

    def _checks(self, profile: Profile, level_error: float) -> dict[Schedule, Check]:
        """What the held-back runs of every schedule come to; where there is no other run, those that were fitted."""
        runs = [run for run in self._samples.runs if run.is_check] or self._samples.runs
        compared = compare_runs(runs, profile)
        return {schedule: check_of(schedule, found, profile, level_error) for schedule, found in compared.items()}

    def _notes(self, checks: Mapping[Schedule, Check], levels: _Levels, left_out: Sequence[str]) -> Iterator[str]:
        task, done, wanted = self._task, self._samples.num_passes, self._task.effort.least_passes
        if done < wanted:
            yield (
                f"Calibration had {task.limit_s:g} s, too few here for all repeats: all but passes of the target was "
                f"timed {done} of {wanted} times."
            )
        yield from task.left_out
        if left_out:
            yield f"What streams add was less than the noise, so they are left out: {', '.join(left_out)}."
        yield from not_understood(levels.target, _TARGET, "Passes in runs", is_kept=True)
        yield from not_understood(levels.step, _STEP, "Steps in runs", is_kept=True)
        yield from note_on(checks)


def _by_lane(ratios: Mapping[Cell, list[Ratio]]) -> dict[tuple[str, str | None], dict[Measurement, list[Ratio]]]:
    """By (lane, drafter), then by what was timed."""
    found = defaultdict[tuple[str, str | None], dict[Measurement, list[Ratio]]](dict)
    for cell, own in ratios.items():
        found[cell.lane, cell.drafter][cell.measurement] = own
    return found


def _reading(table: LatencyTable, num_bytes: float) -> LatencyTable:
    return table.model_copy(update={"bytes_per_call": num_bytes})


def _require_times(profile: Profile) -> None:
    """Raise `ProfileError` for a part that costs nothing: it was noise that was timed."""
    for lane in profile.lanes:
        parts = {"layer": lane.layer, "lm_head": lane.lm_head, "draft_step": lane.draft_step}
        parts |= {"draft_step_features": lane.draft_step_features, "draft_start": lane.draft_start}
        parts |= {f"step of {k}": v for k, v in lane.heads.items()}
        for name, table in parts.items():
            if table is not None and min(map(min, table.seconds)) <= 0:
                msg = (
                    f"lane {lane.name!r}: {name} came out as costing nothing, so it was noise that was timed; "
                    "calibrate again, with more time or while nothing else runs"
                )
                raise ProfileError(msg)
