"""Runs the passes of a calibration: each pass times everything once, and passes repeat as time allows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from typing import Final

from calibrate.fitting.noise import ENOUGH
from calibrate.profiling.anchors import MOST_TAKES, Anchors, decode_with_anchors
from calibrate.profiling.lane_pairs import measure_pairs, message_costs
from calibrate.profiling.lane_parts import OF_THE_TARGET, HeadParts, LaneParts
from calibrate.profiling.samples import CalibrationRun, Cell, Samples
from calibrate.profiling.task import CalibrationTask, schedules_of
from calibrate.profiling.unfinished import Unfinished
from calibrate.profiling.visits import second_looks, visit_in_turn
from decoding.errors import ProfileError
from decoding.methods import METHODS
from decoding.progress import ReportProgress
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from runtime.engine import Engine
from runtime.lanes.lane import Lane
from runtime.lanes.sequence_lanes import Listener

_PASSES_BY: Final = 0.95
"""Share of the time limit by which passes must end."""
_VISITS: Final = 0.6
"""Share of timing in the progress of a drafter's part of a pass; decoding has the rest."""
_TARGET_SHARE: Final = 0.75
"""Share of the time left after the passes for timing the target again; the rest is for repeats if no profile can be
fitted."""
_LEAST_OF_TARGET: Final = 3
"""Least number of times that the target is timed, even beyond the time limit: all predictions depend on its passes."""
_MOST_AGAIN: Final = 3
"""Number of times that target and draft are timed again if no profile can be fitted to the samples."""
_STRIDE = 7919
"""A prime, so that the token ids of prompts visit the whole vocabulary."""

Cells = Mapping[str, Sequence[Cell]]
"""Cells to be timed, by lane."""


class Measuring:
    """One calibration in progress.

    In each pass, each drafter (the draft model, None, first) is loaded on all lanes, timed, and decoded with. An
    interrupted calibration (`unfinished`) may already have done a part of the first pass.

    Attributes:
        samples: all samples so far.
        rows: how exact each lane is.
        num_kept: visits that the interrupted calibration made.
        earlier_s: seconds that it took.
    """

    def __init__(
        self,
        engine: Engine,
        task: CalibrationTask,
        progress: ReportProgress,
        clock: Callable[[], float],
        unfinished: Unfinished,
    ) -> None:
        """Load the target on every lane."""
        self.samples = unfinished.begin(task)
        self.num_kept, self._unfinished = len(self.samples.visits), unfinished
        self._engine, self._task, self._progress, self._clock = engine, task, progress, clock
        self._end_s = clock() + task.limit_s
        self._names = [spec.name for spec in task.lanes]
        self._parts = {spec.name: LaneParts(task, spec) for spec in task.lanes}
        progress("loading the models", 0.0)
        # in parallel, since lanes read weights and compile in separate processes
        with ThreadPoolExecutor() as pool:
            lanes = dict(zip(self._names, pool.map(self._first_load, self._names), strict=True))
            for drafter in (*task.heads, None):  # a drafter of another target must be refused before anything is timed
                self._load(drafter, self._names[:1])
            kernels = {name: lane.spec.kernels for name, lane in lanes.items()}
            tested = {kind: name for name, kind in kernels.items()}  # one lane of each kind
            rows = dict(zip(tested, pool.map(engine.row_invariance, tested.values()), strict=True))
        self.rows = {name: rows[kind] for name, kind in kernels.items()}
        self._anchors = Anchors(lanes, context=task.anchor_context, clock=clock)
        self._anchors.go_on_after(self.samples)
        self.earlier_s = self._anchors.now_s
        self.samples.anchors = self._anchors.samples
        self.samples.shared_anchors = self._anchors.shared
        self.samples.dispatch_s = self._anchors.dispatch_s

    def run_passes(self) -> None:
        """Run passes while time allows, then time the target again; raises `LaneError` and `ModelError`."""
        drafters = (None, *self._task.heads)
        end_s = self._clock() + _PASSES_BY * (self._end_s - self._clock())
        sizes = [sum(map(len, self._cells(drafter).values())) for drafter in drafters]
        shares = [done / sum(sizes) for done in accumulate(sizes, initial=0)]
        done = self.samples.num_passes
        least, earlier_s = (0, self.earlier_s / done) if done else (1, 0.0)
        left = self._task.effort.passes - done
        for number in passes_until(end_s, left, self._clock, least=least, last_s=earlier_s):
            index = done + number
            for drafter, (before, after) in zip(drafters, pairwise(shares), strict=True):
                self._go_through(drafter, index, (index + before, index + after))
            if index == 0:
                self._measure_messages()
            self.samples.num_passes += 1
        self._time_target()

    def profile_by(self, profile_of: Callable[[Samples], Profile]) -> Profile:
        """Return the profile fitted to the samples; if that fails, time target and draft again while time allows.

        Raises:
            LaneError: a lane was lost.
            ProfileError: no profile can be fitted to the samples.
        """
        self._progress("checking", _PASSES_BY)
        for _ in range(_MOST_AGAIN):
            try:
                return profile_of(self.samples)
            except ProfileError:
                if self._clock() >= self._end_s:
                    raise
                self._load(None)
                self._visit(self._cells(None))
        return profile_of(self.samples)

    def _first_load(self, lane: str) -> Lane:
        engine, task = self._engine, self._task
        readers = [name for name, method in task.heads.items() if METHODS[method].reads_states]
        with_features = [None] if task.sizes.feature_width else []
        engine.compile_target(lane, task.decoded_exit(lane), [*with_features, *readers])
        return engine.load_target(lane)

    def _load(self, drafter: str | None, names: Sequence[str] = ()) -> dict[str, Lane]:
        """Load a drafter on some lanes (default: all); the target first, so that a draft model shares its embedding."""
        engine, task = self._engine, self._task
        if drafter is not None:
            load = engine.load_streams if METHODS[task.heads[drafter]].drafts_itself else engine.load_draft
            return {name: load(name, drafter) for name in names or self._names}
        lanes = {}
        for name in names or self._names:
            lanes[name] = engine.load_target(name)
            if task.draft_steps:
                lanes[name] = engine.load_draft(name)
        return lanes

    def _cells(self, drafter: str | None) -> Cells:
        if drafter is None:
            return {name: [Cell(name, one) for one in parts.measurements()] for name, parts in self._parts.items()}
        measurements = HeadParts(self._task, drafter).measurements()
        return {name: [Cell(name, one, drafter) for one in measurements] for name in self._names}

    def _go_through(self, drafter: str | None, index: int, passes: tuple[float, float]) -> None:
        """Time a drafter's parts and decode with it, in the pass `index`; samples kept from before are not repeated.

        `passes`: progress in passes at the start and at the end.
        """
        lanes, cells, task = self._load(drafter), self._cells(drafter), self._task
        progress = partial(self._report, passes)
        visited, decoded = self._kept() if index == 0 else (set(), set())
        left = {lane: [cell for cell in own if cell not in visited] for lane, own in cells.items()}
        kept = 1 - sum(map(len, left.values())) / max(1, sum(map(len, cells.values())))
        self._visit(left, index, lambda share: progress(_VISITS * (kept + (1 - kept) * share)))
        for _ in range(ENOUGH - 1):  # time implausible cells again
            if self._clock() < self._end_s:
                self._visit(second_looks(cells, self.samples))
        if drafter is None and not decoded:  # pairs are measured before decoding: with runs, they were measured already
            context, max_rows = task.contexts[0], task.effort.target_rows[-1]
            self.samples.together += measure_pairs(lanes, task.pairs, self._anchors, context=context, max_rows=max_rows)
        runs = [(one, is_check) for is_check in (False, True) for one in schedules_of(task, drafter, is_check=is_check)]
        turns = 1 if drafter is None else task.effort.head_turns
        turn = [run for place, run in enumerate(runs) if place % turns == index % turns]
        for place, (schedule, is_check) in enumerate(turn):
            progress(_VISITS + (1 - _VISITS) * place / len(turn))
            if (schedule, is_check) not in decoded:
                self._decode(schedule, is_check=is_check)
                self._time_shortest_pass(schedule.target_lane)

    def _kept(self) -> tuple[set[Cell], set[tuple[Schedule, bool]]]:
        """Return the visited cells, and the decoded (schedule, is_check)."""
        return {one.cell for one in self.samples.visits}, {(one.schedule, one.is_check) for one in self.samples.runs}

    def _visit(self, cells: Cells, index: int = 0, progress: Callable[[float], None] = lambda _share: None) -> None:
        for visits in visit_in_turn(cells, self._anchors, backwards=index % 2 == 1, progress=progress):
            self.samples.visits += visits
            self._unfinished.keep(self.samples)

    def _time_target(self) -> None:
        """Time the target again in the time that is too short for a whole pass, since predictions depend on it most.

        If there was one pass only, its runs with the draft model are repeated first.
        """
        cells = {
            lane: [cell for cell in own if cell.measurement.part in OF_THE_TARGET]
            for lane, own in self._cells(None).items()
        }
        end_s = self._clock() + _TARGET_SHARE * (self._end_s - self._clock())
        self._load(None)
        done, least = self.samples.num_passes, _LEAST_OF_TARGET - self.samples.num_passes
        if done == 1:
            self._decode_again(end_s)
        for index in passes_until(end_s, self._task.effort.passes - done, self._clock, least=least):
            self._visit(cells, index)

    def _decode_again(self, end_s: float) -> None:
        """Decode with the draft model once more: only a second run can show that something disturbed the first."""
        for schedule in schedules_of(self._task, None, is_check=False):
            if self._clock() < end_s:
                self._decode(schedule, is_check=False)

    def _decode(self, schedule: Schedule, *, is_check: bool) -> None:
        contexts, num_tokens = self._task.contexts, self._task.effort.run_tokens
        self.samples.runs.append(decode(self._engine, self._anchors, schedule, contexts, num_tokens, is_check=is_check))
        self._unfinished.keep(self.samples)

    def _time_shortest_pass(self, lane: str) -> None:
        """Time the shortest pass of the target once more.

        The table's growth starts at it, and all short texts are priced by it, but a few minutes of long contexts visit
        every cell three times only.
        """
        self._visit({lane: [Cell(lane, self._parts[lane].shortest_pass)]})

    def _measure_messages(self) -> None:
        lanes = self._load(None)
        for name in dict.fromkeys(draft_lane for _, draft_lane in self._task.pairs):
            self.samples.messages_s[name] = message_costs(lanes[name], self._task.sizes.feature_width)

    def _report(self, passes: tuple[float, float], share: float) -> None:
        """Report the progress by passes or by time, whichever is further; `share`: of a drafter's part of the pass.

        Progress by time is limited to that within the first pass, which is made in any case.
        """
        limit_s, num_passes = self._task.limit_s, passes[0] + share * (passes[1] - passes[0])
        of_time = 1 - (self._end_s - self._clock()) / limit_s if 0 < limit_s < inf else 0.0
        by_passes = num_passes / self._task.effort.passes
        self._progress("timing parts", min(_PASSES_BY, max(_PASSES_BY * by_passes, min(of_time, num_passes))))


def passes_until(
    end_s: float, count: int, clock: Callable[[], float], *, least: int = 1, last_s: float = 0.0
) -> Iterator[int]:
    """Yield the numbers (from 0) of up to `count` passes that should end by `end_s` of a clock.

    The first `least` passes are always made. Another one begins if it would end in time, taking as long as the last one
    (initially `last_s`). A pass is never broken off, so that all parts have equally many repeats.
    """
    for index in range(count):
        start_s = clock()
        if index >= least and start_s + last_s > end_s:
            return
        yield index
        last_s = clock() - start_s


def decode(
    engine: Engine,
    anchors: Anchors,
    schedule: Schedule,
    contexts: tuple[int, int],
    num_tokens: int,
    *,
    is_check: bool = False,
) -> CalibrationRun:
    """Decode arbitrary text within the range `contexts`, with anchors before it, between its rounds, and after it."""
    first, last = contexts
    num_tokens = min(num_tokens, max(1, last - first - 1))
    length = max(
        first + 1, min(first + 1 + (last - first) // 3, last - num_tokens)
    )  # positions were asked for up to `last`
    prompt = [(place + 1) * _STRIDE % engine.config.vocab_size for place in range(length)]

    def generate(listener: Listener) -> Trace:
        made = engine.generate(schedule, prompt, max_new_tokens=num_tokens, eos_token_ids=(), listener=listener)
        return made.trace

    for _ in range(MOST_TAKES):
        at_s = anchors.now_s
        trace, taken = decode_with_anchors(anchors, schedule, generate)
        if not trace.events:
            break
    return CalibrationRun(schedule, length, trace, taken, is_check=is_check, at_s=at_s)
