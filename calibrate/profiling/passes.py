"""The passes of a calibration: everything is timed once in each, in turn, as often as time allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from calibrate.fitting.checks import check_of
from calibrate.fitting.links import MESSAGE_CANDIDATES, MESSAGE_ROWS, message_width
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.lane_pairs import measure_pairs
from calibrate.profiling.lane_parts import OF_THE_TARGET
from calibrate.profiling.placements import check_schedules, fit_schedules, head_schedules
from calibrate.profiling.run_anchors import decode_with_anchors
from calibrate.profiling.run_times import compare_runs
from calibrate.profiling.samples import Cell, Run, Samples
from calibrate.profiling.task import CalibrationTask
from calibrate.profiling.visits import message_costs, second_looks, visit_in_turn
from calibrate.time_budget import passes_until
from costs.round_plan import TARGET_WORK
from decoding.errors import ProfileError
from decoding.methods import METHODS
from decoding.progress import ReportProgress
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from runtime.engine import Engine
from runtime.lanes.lane import Lane
from runtime.lanes.sequence_lanes import Listener

_MESSAGE_REPEATS: Final = 40
_PASSES_BY: Final = 0.95
"""Share of the time by which passes end."""
_TARGET_SHARE: Final = 0.75
"""Share of the time left then in which the target is timed alone; what is far off is decoded again in the rest."""
_MOST_AGAIN: Final = 3
"""Times per check that something is decoded again, beyond as often as it had been."""
_STRIDE = 7919
"""Prime, so that the ids of the tokens visit the whole vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One drafter on all lanes: its cells by lane, the schedules decoded with it, and lanes to be timed side by side.

    `fits` set levels and `checks` check them, each decoded once in `run_turns` passes.
    """

    name: str
    load: Callable[[], Mapping[str, Lane]]
    cells: Mapping[str, Sequence[Cell]]
    fits: Sequence[Schedule] = ()
    checks: Sequence[Schedule] = ()
    pairs: Sequence[tuple[str, str]] = ()
    run_turns: int = 1


@dataclass(slots=True)
class Measuring:
    """One calibration under way; `samples` is what it has so far."""

    engine: Engine
    task: CalibrationTask
    progress: ReportProgress
    clock: Callable[[], float]
    samples: Samples = field(default_factory=Samples)
    _anchors: Anchors = field(init=False)
    _end_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Load the target on every lane, and take the first anchors."""
        self._end_s = self.clock() + self.task.limit_s
        self.progress("loading the models", 0.0)
        names = [spec.name for spec in self.task.lanes]
        # at once: most of it is loading torch and reading weights, which lanes do in processes of their own
        with ThreadPoolExecutor() as pool:
            lanes = dict(zip(names, pool.map(self.engine.load_target, names), strict=True))
        self._anchors = Anchors(lanes, context=self.task.lane_parts.anchor_context, clock=self.clock)
        self.samples.anchors = self._anchors.samples
        self.samples.shared_anchors = self._anchors.shared
        self.samples.dispatch_s = self._anchors.dispatch_s

    def run_passes(self) -> None:
        """Go through all stages, again and again while time allows.

        Raises:
            LaneError: a lane was lost.
            ModelError: a model cannot be loaded.
        """
        effort, stages = self.task.effort, list(self._stages())
        end_s = self.clock() + _PASSES_BY * (self._end_s - self.clock())
        for index in passes_until(end_s, effort.passes, self.clock):
            for place, stage in enumerate(stages):
                self._go_through(stage, index, self._part_of_all(index, place / len(stages)))
            self.samples.num_passes += 1
            if index == 0:
                self._measure_messages(stages[0])
        self._time_target(stages[0])

    def decode_again(self, profile_of: Callable[[Samples], Profile]) -> Profile:
        """Decode the check that is furthest off, and what set its level, while time allows; return the profile then.

        What stays far off is let be after a few times. Before that the target's passes of its widths are timed again,
        since no level mends a table that is wrong at one of them; so are all parts of target and draft where no profile
        comes out of the samples.

        Raises:
            LaneError: a lane was lost.
            ProfileError: no profile comes out of the samples.
        """
        self.progress("checking", _PASSES_BY)
        counts = Counter(run.schedule for run in self.samples.runs if run.is_check)
        left = Counter({schedule: count + _MOST_AGAIN for schedule, count in counts.items()})
        for _ in range(_MOST_AGAIN * len(counts)):
            if self.clock() >= self._end_s:
                break
            try:
                profile = profile_of(self.samples)
            except ProfileError:
                stage = next(self._stages())
                stage.load()
                self.samples.visits += visit_in_turn(stage.cells, self._anchors, backwards=False)
                continue
            doubtful = _furthest_off(self.samples.runs, profile, +left)
            if doubtful is None:
                return profile
            left[doubtful.schedule] -= 1
            self.samples.visits += visit_in_turn(self._passes_of(doubtful), self._anchors, backwards=False)
            if self.clock() >= self._end_s:
                break
            fit = next((run for run in self.samples.runs if not run.is_check and _same_place(run, doubtful)), None)
            for run in filter(None, (fit, doubtful)):
                self._decode(run.schedule, is_check=run.is_check)
        return profile_of(self.samples)

    def _passes_of(self, run: Run) -> Mapping[str, Sequence[Cell]]:
        """The target's whole passes as wide as those of a run, or next to that, on its lane."""
        lane = run.schedule.target_lane
        timed = {one.rows: Cell(lane, one) for one in self.task.lane_parts.on(lane).passes()}
        widths = {span.rows for span in run.trace.spans if span.lane == lane and span.work in TARGET_WORK}
        nearest = {max(rows for rows in timed if rows <= width) for width in widths}
        nearest |= {min((rows for rows in timed if rows >= width), default=max(timed)) for width in widths}
        return {lane: [timed[rows] for rows in sorted(nearest)]}

    def _stages(self) -> Iterator[Stage]:
        task, engine = self.task, self.engine
        names = [spec.name for spec in task.lanes]
        parts, asked = task.lane_parts, (task.lanes, task.max_window, task.draft_steps, task.exit_layers)
        yield Stage(
            name="target and draft" if task.draft_steps else "target",
            load=lambda: {name: self._load_draft(name) for name in names},
            cells={name: [Cell(name, one) for one in parts.on(name).measurements()] for name in names},
            fits=fit_schedules(*asked),
            checks=check_schedules(*asked),
            pairs=task.pairs,
        )
        for head in task.head_parts:
            load = engine.load_streams if METHODS[head.method].drafts_itself else engine.load_draft
            yield Stage(
                name=head.drafter,
                load=partial(_on_all, load, names, head.drafter),
                cells={name: [Cell(name, one, head.drafter) for one in head.measurements()] for name in names},
                fits=head_schedules(task.lanes, head.drafter, head.method, is_check=False),
                checks=head_schedules(task.lanes, head.drafter, head.method, is_check=True),
                run_turns=task.effort.head_turns,
            )

    def _go_through(self, stage: Stage, index: int, progress: Callable[[float], None]) -> None:
        lanes = stage.load()
        cells, anchors = stage.cells, self._anchors
        report = partial(_within, progress, 0.0, 0.6)
        self.samples.visits += visit_in_turn(cells, anchors, backwards=index % 2 == 1, progress=report)
        self._look_again(cells)
        if stage.pairs:
            context, max_rows = self.task.effort.contexts[0], self.task.effort.target_rows[-1]
            self.samples.together += measure_pairs(lanes, stage.pairs, anchors, context=context, max_rows=max_rows)
        runs = [*((one, False) for one in stage.fits), *((one, True) for one in stage.checks)]
        turn = [run for place, run in enumerate(runs) if place % stage.run_turns == index % stage.run_turns]
        for place, (schedule, is_check) in enumerate(turn):
            _within(progress, 0.6, 1.0, place / len(turn))
            self._decode(schedule, is_check=is_check)

    def _look_again(self, cells: Mapping[str, Sequence[Cell]]) -> None:
        """Time what cannot be once more, while time allows: nothing else is refined by it before."""
        if self.clock() < self._end_s:
            again = second_looks(cells, self.samples)
            self.samples.visits += visit_in_turn(again, self._anchors, backwards=False)

    def _time_target(self, stage: Stage) -> None:
        """Time what is most of every round again, where the time that is left is too short for a whole pass."""
        cells = {
            lane: [cell for cell in own if cell.measurement.part in OF_THE_TARGET] for lane, own in stage.cells.items()
        }
        end_s = self.clock() + _TARGET_SHARE * (self._end_s - self.clock())
        stage.load()
        for index in passes_until(end_s, self.task.effort.passes - self.samples.num_passes, self.clock, least=0):
            self.samples.visits += visit_in_turn(cells, self._anchors, backwards=index % 2 == 1)

    def _decode(self, schedule: Schedule, *, is_check: bool) -> None:
        task = self.task
        self.samples.runs.append(
            decode(self.engine, self._anchors, schedule, task.contexts, task.effort.run_tokens, is_check=is_check)
        )

    def _load_draft(self, name: str) -> Lane:
        """The target first: a draft then shares its embedding."""
        lane = self.engine.load_target(name)
        return self.engine.load_draft(name) if self.task.draft_steps else lane

    def _measure_messages(self, stage: Stage) -> None:
        """What messages cost on their way to every lane that may run the draft."""
        width, lanes = message_width(self.task.sizes.feature_width), stage.load()
        for name in dict.fromkeys(draft_lane for _, draft_lane in self.task.pairs):
            self.samples.messages_s[name] = message_costs(
                lanes[name], MESSAGE_ROWS, MESSAGE_CANDIDATES, width, _MESSAGE_REPEATS
            )

    def _part_of_all(self, index: int, done: float) -> Callable[[float], None]:
        """Reports a share of a stage as a share of everything, by the passes or by the time, whichever is further."""
        num_passes, stages = self.task.effort.passes, 1 + len(self.task.heads)

        def report(share: float) -> None:
            by_passes = (index + done + share / stages) / num_passes
            self.progress("timing parts", min(_PASSES_BY, max(_PASSES_BY * by_passes, self._share_of_time())))

        return report

    def _share_of_time(self) -> float:
        """That is over; 0 where there is no limit, or no time at all."""
        limit_s = self.task.limit_s
        return 1 - (self._end_s - self.clock()) / limit_s if 0 < limit_s < inf else 0.0


def decode(
    engine: Engine,
    anchors: Anchors,
    schedule: Schedule,
    contexts: tuple[int, int],
    num_tokens: int,
    *,
    is_check: bool = False,
) -> Run:
    """Decode arbitrary text whose contexts lie within the given ones, with anchors before, in between and after.

    Raises:
        MirrorsdError: a lane or model is not to be had.
    """
    first, last = contexts
    num_tokens = min(num_tokens, last - first)
    length = min(first + 1 + (last - first) // 3, last + 1 - num_tokens)
    vocab_size = engine.config.vocab_size
    prompt = [(place + 1) * _STRIDE % vocab_size for place in range(length)]

    def generate(listener: Listener) -> Trace:
        made = engine.generate(schedule, prompt, max_new_tokens=num_tokens, eos_token_ids=(), listener=listener)
        return made.trace

    at_s = anchors.now_s
    trace, taken = decode_with_anchors(anchors, schedule, generate)
    return Run(schedule, length, trace, taken, is_check=is_check, at_s=at_s)


def _on_all(load: Callable[[str, str], Lane], names: Sequence[str], drafter: str) -> Mapping[str, Lane]:
    return {name: load(name, drafter) for name in names}


def _within(progress: Callable[[float], None], start: float, stop: float, share: float) -> None:
    progress(start + (stop - start) * share)


def _furthest_off(runs: Sequence[Run], profile: Profile, among: Collection[Schedule]) -> Run | None:
    """A run of the check that is furthest off among some schedules, if it is doubtful."""
    compared = compare_runs((run for run in runs if run.is_check and run.schedule in among), profile)
    checks = {schedule: check_of(schedule, found, profile) for schedule, found in compared.items()}
    worst = max(checks, key=lambda schedule: abs(checks[schedule].error), default=None)
    if worst is None or not checks[worst].is_doubtful:
        return None
    return next(run for run in runs if run.is_check and run.schedule == worst)


def _same_place(one: Run, other: Run) -> bool:
    def place(run: Run) -> tuple[object, ...]:
        schedule = run.schedule
        return schedule.method, schedule.drafter, schedule.target_lane, schedule.draft_lane

    return place(one) == place(other)
