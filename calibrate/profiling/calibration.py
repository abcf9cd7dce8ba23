"""Calibration: measures every lane of this machine with these models, and writes it down as a `Profile`.

::

    heads in turn   -> steps of heads, and what streams add                   (head_parts)
    visits in turn  -> medians of whole operations -> tables of their parts   (visits, lane_parts, fit)
    pairs of lanes  -> what they cost each other                              (lane_pairs)
    short decodings -> the level of the tables in a real run                  (decodings)
    other decodings -> how far the result is off                              (decodings)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

from calibrate.profiling.decodings import Run, decode, gaps_s, level_factor, residual
from calibrate.fitting.fit import Level, levelled
from calibrate.profiling.grid import USUAL_BRANCHES, Effort, full_effort, quick_effort
from calibrate.profiling.head_parts import HeadParts, HeadTables, measure_heads
from calibrate.profiling.lane_pairs import measure_pairs
from calibrate.profiling.lane_parts import DraftStep, LaneParts
from calibrate.profiling.model_sizes import ModelSizes, PartBytes
from calibrate.profiling.placements import check_schedules, fit_schedules
from calibrate.profiling.time_budget import Passes
from calibrate.profiling.visits import message_costs, visit_in_turn
from decoding.methods import METHODS
from decoding.progress import ReportProgress
from decoding.schedule import Method, Schedule
from decoding.trace import Work
from hwprofiles.host import describe_host
from hwprofiles.placement import PlacedLane, split_pairs
from hwprofiles.profile import BYTES_PER_CANDIDATE, Contention, LaneProfile, LatencyTable, LinkProfile, Profile
from runtime.engine import Engine
from runtime.lanes.lane import Lane

_MESSAGE_ROWS = 5
_MESSAGE_CANDIDATES = 9
_MESSAGE_REPEATS = 40
_LEAST_WIDTH = 1024
"""A smaller payload would cost too little to measure the bandwidth."""
_QUICK_S = 60.0
_TIMED_BY, _PAIRED_BY = 0.65, 0.75
"""Shares of the time by which the parts and then the pairs of lanes are timed; decoding takes the rest."""
_HEAD_PASSES = 1
_HOPS = 2
"""An exit message goes from the target's lane to the driver, and from there to the draft's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationTask:
    """What is to be calibrated.

    Attributes:
        target, drafter: what a user calls the models; drafter None calibrates plain decoding only.
        sizes: their shapes.
        lanes: lanes of the engine; all of them will load both models.
        exit_layers: exits that schedules may take.
        contexts: the fewest and the most cached tokens that schedules will meet.
        max_window: most drafted tokens per round, of chains.
        max_branches: most branches per round.
        heads: heads and streams of the target by name, and the method that each is for.
        max_tree: nodes of the largest tree that schedules may draft with them.
        quick: whether a rougher profile in less time is wanted.
        time_s: in which to be done. Repeats that do not fit are left out; everything is measured once in any case.
            None is a minute for a quick calibration, and no limit for a full one.
    """

    target: str
    drafter: str | None
    sizes: ModelSizes
    lanes: tuple[PlacedLane, ...]
    exit_layers: tuple[int, ...]
    contexts: tuple[int, int]
    max_window: int = 8
    max_branches: int = USUAL_BRANCHES
    heads: Mapping[str, Method] = field(default_factory=dict)
    max_tree: int = 32
    quick: bool = False
    time_s: float | None = None

    @property
    def limit_s(self) -> float:
        """The time it may take."""
        if self.time_s is not None:
            return self.time_s
        return _QUICK_S if self.quick else inf

    @property
    def effort(self) -> Effort:
        """What is measured how often."""
        max_tree = self.max_tree if any(METHODS[method].is_tree for method in self.heads.values()) else 0
        # a step with features reads the window and starts the branches at once
        max_step = self.max_branches + (self.max_window if "draft_step_features" in self.draft_steps else 0)
        return (quick_effort if self.quick else full_effort)(self.max_window, self.contexts, max_tree, max_step)

    @property
    def draft_steps(self) -> tuple[DraftStep, ...]:
        """Steps that the draft has; none without a draft."""
        if self.drafter is None:
            return ()
        return ("draft_step", "draft_step_features") if self.sizes.feature_width else ("draft_step",)


def calibrate(
    engine: Engine,
    task: CalibrationTask,
    progress: ReportProgress = lambda _step, _share: None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Profile:
    """Measure everything; `Profile.calibration_s` is how long it took, loading the models included.

    Where the task's time ran short, `Profile.notes` lists what was measured less often than wanted.

    Raises:
        ConfigError: the contexts are no range.
        LaneError: a lane was lost.
        ModelError: a model cannot be loaded.
    """
    start_s = clock()
    profile = _Calibration(engine, task, progress, clock).run()
    progress("done", 1.0)
    return profile.model_copy(update={"calibration_s": clock() - start_s})


class _Calibration:
    """One calibration under way."""

    def __init__(
        self, engine: Engine, task: CalibrationTask, progress: ReportProgress, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._task = task
        self._effort = task.effort
        self._progress = progress
        self._part_passes = self._passes(clock, _TIMED_BY)
        self._pair_passes = self._passes(clock, _PAIRED_BY)
        self._source = f"calibration on this machine ({'quick' if task.quick else 'full'})"
        self._pairs = split_pairs(task.lanes) if task.draft_steps else []
        self._parts = LaneParts(
            effort=self._effort,
            num_layers=engine.config.num_layers,
            exit_layers=task.exit_layers,
            draft_steps=task.draft_steps,
            num_streams=task.sizes.num_draft_streams,
            source=self._source,
        )

    def run(self) -> Profile:
        task, profile = self._task, self._timed()
        asked = task.lanes, task.max_window, task.draft_steps, task.exit_layers
        self._progress("decoding", 0.7)
        runs = [self._decode(schedule) for schedule in fit_schedules(*asked)]
        profile = _at_level(profile, runs)
        self._progress("checking", 0.9)
        checks = [self._decode(schedule) for schedule in check_schedules(*asked)] or runs
        errors = [residual(run, profile) for run in checks]
        return profile.model_copy(
            update={
                "round_overhead_s": _round_overhead_s(runs, profile),
                "relative_error": max((abs(error) for error in errors if error is not None), default=0.0),
                "notes": tuple(self._notes()),
            }
        )

    def _timed(self) -> Profile:
        """The profile of parts in a loop."""
        task = self._task
        self._progress("loading the models", 0.0)
        heads = self._measure_heads()
        lanes = {spec.name: self._load(spec.name) for spec in task.lanes}
        samples = visit_in_turn(
            lanes,
            [cell for name in lanes for cell in self._parts.cells(name)],
            passes=self._part_passes,
            progress=lambda share: self._progress("timing parts", 0.1 + 0.5 * share),
        )
        traffic = task.sizes.part_bytes(sum(task.contexts) // 2)
        profiles = [_with_traffic(self._parts.lane_profile(spec, samples), traffic) for spec in task.lanes]
        self._progress("timing lanes side by side", 0.6)
        contention = measure_pairs(
            lanes,
            self._pairs,
            context=self._effort.contexts[0],
            max_rows=self._effort.target_rows[-1],
            passes=self._pair_passes,
            source=self._source,
        )
        return Profile(
            host=describe_host(),
            target=task.target,
            drafter=task.drafter,
            dtype=task.sizes.dtype,
            num_layers=self._engine.config.num_layers,
            lanes=tuple(lane.model_copy(update=heads[lane.name]._asdict()) for lane in profiles),
            links=tuple(self._links(lanes)),
            contention=contention,
            features_bytes_per_row=task.sizes.features_bytes_per_row,
        )

    def _passes(self, clock: Callable[[], float], share: float) -> Passes:
        """As many as are wanted, if they are done in this share of the time, which starts now."""
        return Passes(count=self._effort.passes, end_s=clock() + share * self._task.limit_s, clock=clock)

    def _notes(self) -> Iterator[str]:
        measured = {"parts": self._part_passes} | ({"pairs of lanes": self._pair_passes} if self._pairs else {})
        least = self._effort.least_passes
        if any(passes.num_done < least for passes in measured.values()):
            counts = ", ".join(f"{what} {passes.num_done} of {least} times" for what, passes in measured.items())
            yield f"Calibration had {self._task.limit_s:g} s, too few here for all repeats: it timed {counts}."

    def _load(self, name: str) -> Lane:
        """The target first: a draft then shares its embedding."""
        lane = self._engine.load_target(name)
        return self._engine.load_draft(name) if self._task.draft_steps else lane

    def _measure_heads(self) -> dict[str, HeadTables]:
        """Before the draft is loaded, in whose place they come."""
        task = self._task
        parts = HeadParts(
            effort=self._effort,
            contexts=task.contexts,
            is_quick=task.quick,
            most_rows=task.max_tree + 1,
            source=self._source,
        )
        for spec in task.lanes:
            self._engine.load_target(spec.name)
        if task.heads:
            self._progress("timing heads", 0.05)
        return measure_heads(self._engine, task.lanes, task.heads, parts, lambda: Passes(count=_HEAD_PASSES))

    def _links(self, lanes: Mapping[str, Lane]) -> Iterator[LinkProfile]:
        """One link for every two lanes, from what messages cost on their way to the draft's lane."""
        width = max(self._task.sizes.feature_width, _LEAST_WIDTH)
        plain_bytes = _MESSAGE_ROWS * _MESSAGE_CANDIDATES * BYTES_PER_CANDIDATE
        features_bytes = _MESSAGE_ROWS * width * 2
        for target_lane, draft_lane in self._pairs:
            if target_lane > draft_lane:
                continue
            plain_s, loaded_s = message_costs(
                lanes[draft_lane], _MESSAGE_ROWS, _MESSAGE_CANDIDATES, width, _MESSAGE_REPEATS
            )
            byte_s = max(loaded_s - plain_s, 1e-3 * plain_s, 1e-9) / features_bytes
            yield LinkProfile(
                lanes=(target_lane, draft_lane),
                latency_s=_HOPS * max(0.0, plain_s - plain_bytes * byte_s),
                bytes_per_s=1 / (_HOPS * byte_s),
                source=self._source,
            )

    def _decode(self, schedule: Schedule) -> Run:
        return decode(self._engine, schedule, self._task.contexts, self._effort.run_tokens)


def _at_level(profile: Profile, runs: Sequence[Run]) -> Profile:
    """The profile with its lanes at the level of real runs, and slowdowns relative to that."""
    plain = [run for run in runs if not run.schedule.exit_features]
    featured = [run for run in runs if run.schedule.exit_features]
    steps = {lane.name: level_factor(plain, lane.name, Work.ROLLOUT_STEP, profile) or 1.0 for lane in profile.lanes}
    # a draft that finds its cache used by the target is slowed once, whether at the same time or after it
    contention = tuple(_relative(entry, steps) for entry in profile.contention)
    profile = profile.model_copy(update={"contention": contention})

    def level(name: str) -> Level:
        return Level(
            target=level_factor(runs, name, Work.VERIFY, profile) or 1.0,
            step=steps[name],
            features_step=level_factor(featured, name, Work.ROLLOUT_STEP, profile) or steps[name],
            branch_step=level_factor(plain, name, Work.BRANCH_STEP, profile) or steps[name],
        )

    return profile.model_copy(update={"lanes": tuple(levelled(lane, level(lane.name)) for lane in profile.lanes)})


def _relative(entry: Contention, step_levels: Mapping[str, float]) -> Contention:
    (_, draft_lane), (target, draft) = entry.lanes, entry.slowdown
    return entry.model_copy(update={"slowdown": (target, draft / step_levels[draft_lane])})


def _with_traffic(lane: LaneProfile, traffic: PartBytes) -> LaneProfile:
    def reading(table: LatencyTable | None, num_bytes: float) -> LatencyTable | None:
        return None if table is None else table.model_copy(update={"bytes_per_call": num_bytes})

    return lane.model_copy(
        update={
            "layer": reading(lane.layer, traffic.layer),
            "lm_head": reading(lane.lm_head, traffic.lm_head),
            "exit": {layer: reading(table, traffic.exit) for layer, table in lane.exit.items()},
            "draft_step": reading(lane.draft_step, traffic.draft_step),
            "draft_step_features": reading(lane.draft_step_features, traffic.draft_step),
        }
    )


def _round_overhead_s(runs: Sequence[Run], profile: Profile) -> float:
    """What lies between two verifications of plain decoding beyond the dispatch, over all lanes."""
    plain = [run for run in runs if run.schedule.traits.window == "none"]
    beyond = [gap_s - profile.lane(run.schedule.target_lane).dispatch_s for run in plain for gap_s in gaps_s(run)]
    return max(0.0, median(beyond)) if beyond else 0.0
