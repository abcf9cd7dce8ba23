"""Runs schedules for real, in turn, with anchors of the machine's speed around every run and in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from calibrate.profiling.anchors import Anchors
from calibrate.profiling.run_anchors import decode_with_anchors, lanes_of
from decoding.progress import ReportProgress
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from mirrorsd.compare.pace import anchor_context
from mirrorsd.compare.runs import Measured, Run
from runtime.lanes.sequence_lanes import Listener

if TYPE_CHECKING:
    from calibrate.prompts import EncodedPrompt
    from runtime.engine import Engine

_WARM_UP_TOKENS: Final = 4


def run_in_turn(
    engine: Engine,
    schedules: Sequence[Schedule],
    prompts: Sequence[EncodedPrompt],
    anchors: Anchors,
    *,
    max_new_tokens: int,
    enough: Callable[[int, float], bool] = lambda _num_prompts, _prompt_s: False,
    progress: ReportProgress = lambda _step, _share: None,
) -> Measured:
    """Run every schedule on every prompt, prompt by prompt, so that changes of the machine's speed hit all alike.

    Schedules of the same lanes follow each other, so that the anchors after one serve for the next as well. The
    order rotates from prompt to prompt. Before the first one each runs once unmeasured. A run that loses a lane is
    made once more, and then counts. `enough` is asked with the number of prompts done, at least one, and the seconds
    that each took, whether to leave the others out.

    Raises:
        MirrorsdError: a schedule does not fit, or the target's lane was lost.
    """
    turns = _Turns(engine, schedules, anchors, max_new_tokens)
    for turn, schedule in enumerate(turns.order):
        progress(f"warming up, schedule {turn + 1} of {len(schedules)}", 0.0)
        turns.warm_up(schedule, prompts[0])
    runs: dict[Schedule, list[Run]] = {schedule: [] for schedule in schedules}
    start_s = anchors.now_s
    for place, prompt in enumerate(prompts):
        if place > 0 and enough(place, (anchors.now_s - start_s) / place):
            break

        def report(turn: int, place: int = place) -> None:
            step = f"prompt {place + 1} of {len(prompts)}, schedule {turn + 1} of {len(schedules)}"
            progress(step, (place + turn / len(schedules)) / len(prompts))

        for schedule, run in turns.of(prompt, place, report):
            runs[schedule].append(run)
    return Measured(runs=tuple(tuple(runs[schedule]) for schedule in schedules))


def anchors_of(engine: Engine, profile: Profile) -> Anchors:
    """Anchors as the calibration of a profile took them, on its lanes in this engine."""
    lanes = {lane.name: engine.lane(lane.name) for lane in profile.lanes}
    return Anchors(lanes, context=anchor_context(profile))


class _Turns:
    """All schedules on a prompt, one after the other."""

    def __init__(self, engine: Engine, schedules: Sequence[Schedule], anchors: Anchors, max_new_tokens: int) -> None:
        self._engine, self._anchors, self._max_new_tokens = engine, anchors, max_new_tokens
        places = {schedule: place for place, schedule in enumerate(schedules)}
        first = {lanes_of(schedule): place for schedule, place in reversed(places.items())}
        self.order = sorted(schedules, key=lambda schedule: (first[lanes_of(schedule)], places[schedule]))

    def warm_up(self, schedule: Schedule, prompt: EncodedPrompt) -> None:
        """Load what the schedule needs, and run it briefly."""
        self._engine.generate(schedule, prompt.ids, max_new_tokens=_WARM_UP_TOKENS)

    def of(self, prompt: EncodedPrompt, rotation: int, report: Callable[[int], None]) -> list[tuple[Schedule, Run]]:
        """Return every schedule once, the order rotated by so many places."""
        start = rotation % len(self.order)
        order = self.order[start:] + self.order[:start]
        made = []
        for turn, schedule in enumerate(order):
            report(turn)
            made.append((schedule, self._run(schedule, prompt)))
        return made

    def _run(self, schedule: Schedule, prompt: EncodedPrompt) -> Run:
        """Return a run between anchors; made again where it lost a lane."""
        run = self._between_anchors(schedule, prompt)
        if not run.trace.events:
            return run
        self.warm_up(schedule, prompt)
        return replace(self._between_anchors(schedule, prompt), given_up=run.trace)

    def _between_anchors(self, schedule: Schedule, prompt: EncodedPrompt) -> Run:
        for lane in lanes_of(schedule):
            self._engine.load_target(lane)  # it may have been lost
        tokens: tuple[int, ...] = ()

        def generate(listener: Listener) -> Trace:
            nonlocal tokens
            made = self._engine.generate(schedule, prompt.ids, max_new_tokens=self._max_new_tokens, listener=listener)
            tokens = made.tokens
            return made.trace

        at_s = self._anchors.now_s
        trace, taken = decode_with_anchors(self._anchors, schedule, generate)
        return Run(trace=trace, tokens=tokens, at_s=at_s, anchors=taken)
