"""Runs several schedules in turn on every prompt, with anchors before, during and after each run."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from calibrate.profiling.anchors import Anchors, decode_past_a_loss, lanes_of
from calibrate.prompts import EncodedPrompt
from decoding.errors import LaneError, MemoryFitError
from decoding.progress import ReportProgress
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Trace
from hwprofiles.profile import Profile
from mirrorsd.compare.runs import Measured, Run, anchor_context
from runtime.engine import Engine
from runtime.lanes.sequence_lanes import Listener

_WARM_UP_TOKENS: Final = 4


def run_in_turn(
    engine: Engine,
    schedules: Sequence[Schedule],
    prompts: Sequence[EncodedPrompt],
    anchors: Anchors,
    *,
    cuts: Sequence[int],
    going_on: Callable[[Measured], Collection[Schedule]] | None = None,
    progress: ReportProgress = lambda _step, _share: None,
) -> Measured:
    """Run all schedules on one prompt after the other, so that changes of the machine's speed affect all equally.

    Schedules of the same lanes follow each other and share anchors; the order rotates from prompt to prompt. First,
    each schedule runs once unmeasured. A run that loses a lane, or in which this process was paused, is repeated once;
    the repetition counts. A schedule whose draft lane no longer has room (it died, or a text is longer) runs no further
    prompts. Answers are cut to `cuts` tokens. Before every prompt, `going_on` returns the schedules that run it; if
    there are none, the runs end.

    Raises:
        MirrorsdError: a schedule does not fit, or the target's lane died.
    """
    turns = _Turns(engine, schedules, anchors)
    for turn, schedule in enumerate(turns.order):
        progress(f"warming up, schedule {turn + 1} of {len(schedules)}", 0.0)
        turns.warm_up(schedule, prompts[0])
    runs: dict[Schedule, list[Run]] = {schedule: [] for schedule in schedules}

    def measured() -> Measured:
        num_prompts = max(map(len, runs.values()))
        return Measured(runs=tuple(tuple(runs[schedule]) for schedule in schedules), cuts=tuple(cuts[:num_prompts]))

    left: Collection[Schedule] = schedules
    for place, (prompt, cut) in enumerate(zip(prompts, cuts, strict=True)):
        if going_on is not None:
            still = going_on(measured())
            left = [schedule for schedule in left if schedule in still]
        if not left:
            break
        order = turns.rotated(left, place)
        for turn, schedule in enumerate(order):
            step = f"prompt {place + 1} of {len(prompts)}, schedule {turn + 1} of {len(order)}"
            progress(step, (place + turn / len(order)) / len(prompts))
            try:
                runs[schedule].append(turns.run(schedule, prompt, cut))
            except MemoryFitError as error:
                is_split = len(lanes_of(schedule)) > 1  # the draft's lane can die while the target's lives
                if not (is_split and runs[schedule]):
                    raise
                last, why = runs[schedule][-1].trace, f"{error}. No further prompts ran"
                last.events.append(LaneEvent(last.decode_s, lanes_of(schedule)[1], why, is_loss=False))
                left = [one for one in left if one != schedule]
    return measured()


def anchors_of(engine: Engine, profile: Profile) -> Anchors:
    """Return anchors like those of a profile's calibration, on its lanes in this engine."""
    lanes = {lane.name: engine.lane(lane.name) for lane in profile.lanes}
    return Anchors(lanes, context=anchor_context(profile))


class _Turns:
    """Runs schedules between anchors, in an order by lanes."""

    def __init__(self, engine: Engine, schedules: Sequence[Schedule], anchors: Anchors) -> None:
        self._engine, self._anchors = engine, anchors
        places = {schedule: place for place, schedule in enumerate(schedules)}
        first = {lanes_of(schedule): place for schedule, place in reversed(places.items())}
        self.order = sorted(schedules, key=lambda schedule: (first[lanes_of(schedule)], places[schedule]))

    def rotated(self, schedules: Collection[Schedule], rotation: int) -> list[Schedule]:
        """Return some of the schedules in their order, rotated by `rotation` places."""
        order = [schedule for schedule in self.order if schedule in schedules]
        start = rotation % len(order)
        return order[start:] + order[:start]

    def warm_up(self, schedule: Schedule, prompt: EncodedPrompt) -> None:
        """Load what the schedule needs, run it briefly, and compile the anchors' single row apart from its rows."""
        self._engine.generate(schedule, prompt.ids, max_new_tokens=_WARM_UP_TOKENS)
        self._engine.compile_target(schedule.target_lane, exit_layer=None, drafters=())

    def run(self, schedule: Schedule, prompt: EncodedPrompt, cut: int) -> Run:
        """Return a run between anchors; it is repeated if it was disturbed and memory allows."""
        run = self._between_anchors(schedule, prompt, cut)
        if not run.trace.events:
            return run
        try:
            self.warm_up(schedule, prompt)
            return replace(self._between_anchors(schedule, prompt, cut), given_up=run.trace)
        except MemoryFitError:
            return run

    def _between_anchors(self, schedule: Schedule, prompt: EncodedPrompt, cut: int) -> Run:
        for lane in lanes_of(schedule):
            try:
                self._engine.load_target(lane)  # the lane may have died and been restarted
            except (LaneError, MemoryFitError):
                if lane == schedule.target_lane:
                    raise
        tokens: tuple[int, ...] = ()

        def generate(listener: Listener) -> Trace:
            nonlocal tokens
            made = self._engine.generate(schedule, prompt.ids, max_new_tokens=cut, listener=listener)
            tokens = made.tokens
            return made.trace

        at_s = self._anchors.now_s
        trace, taken = decode_past_a_loss(self._anchors, schedule, generate)
        return Run(trace=trace, tokens=tokens, at_s=at_s, anchors=taken)
