"""Runs schedules for real, in turn, with the machine's speed taken around every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from decoding.progress import ReportProgress
from decoding.schedule import Schedule
from mirrorsd.compare.runs import Measured, Run, SpeedSample
from mirrorsd.compare.speed_probe import SpeedProbe, lanes_of

if TYPE_CHECKING:
    from calibrate.prompts import EncodedPrompt
    from runtime.engine import Engine, Generation

_WARM_UP_TOKENS: Final = 4


def run_in_turn(
    engine: Engine,
    schedules: Sequence[Schedule],
    prompts: Sequence[EncodedPrompt],
    probe: SpeedProbe,
    *,
    max_new_tokens: int,
    enough: Callable[[int, float], bool] = lambda _num_prompts, _prompt_s: False,
    progress: ReportProgress = lambda _step, _share: None,
) -> Measured:
    """Run every schedule on every prompt, prompt by prompt, so that changes of the machine's speed hit all alike.

    Schedules of the same lanes follow each other, so that what is timed after one serves for the next as well. The
    order rotates from prompt to prompt. Before the first one each runs once unmeasured. A run that loses a lane is
    made once more, and then counts. `enough` is asked with the number of prompts done, at least one, and the seconds
    that each took, whether to leave the others out.

    Raises:
        MirrorsdError: a schedule does not fit, or the target's lane was lost.
    """
    turns = _Turns(engine, schedules, probe, max_new_tokens)
    for turn, schedule in enumerate(turns.order):
        progress(f"warming up, schedule {turn + 1} of {len(schedules)}", 0.0)
        turns.warm_up(schedule, prompts[0])
    runs: dict[Schedule, list[Run]] = {schedule: [] for schedule in schedules}
    start_s = probe.now_s()
    for place, prompt in enumerate(prompts):
        if place > 0 and enough(place, (probe.now_s() - start_s) / place):
            break

        def report(turn: int, place: int = place) -> None:
            step = f"prompt {place + 1} of {len(prompts)}, schedule {turn + 1} of {len(schedules)}"
            progress(step, (place + turn / len(schedules)) / len(prompts))

        for schedule, run in turns.of(prompt, place, report):
            runs[schedule].append(run)
    return Measured(runs=tuple(tuple(runs[schedule]) for schedule in schedules))


class _Turns:
    """All schedules on a prompt, one after the other."""

    def __init__(self, engine: Engine, schedules: Sequence[Schedule], probe: SpeedProbe, max_new_tokens: int) -> None:
        self._engine, self._probe, self._max_new_tokens = engine, probe, max_new_tokens
        places = {schedule: place for place, schedule in enumerate(schedules)}
        first = {lanes_of(schedule): place for schedule, place in reversed(places.items())}
        self.order = sorted(schedules, key=lambda schedule: (first[lanes_of(schedule)], places[schedule]))

    def warm_up(self, schedule: Schedule, prompt: EncodedPrompt) -> None:
        """Load what the schedule needs, and run it briefly."""
        self._engine.generate(schedule, prompt.ids, max_new_tokens=_WARM_UP_TOKENS)

    def of(self, prompt: EncodedPrompt, rotation: int, report: Callable[[int], None]) -> list[tuple[Schedule, Run]]:
        """Every schedule once, the order rotated by so many places."""
        start = rotation % len(self.order)
        order = self.order[start:] + self.order[:start]
        made = []
        before = self._probe.look(order[0])
        for turn, (schedule, following) in enumerate(pairwise([*order, None])):
            assert schedule is not None, "only the last has no following one"
            report(turn)
            run = self._run(schedule, prompt, before)
            after = self._probe.look(schedule, *filter(None, [following]))
            made.append((schedule, replace(run, around=run.around + _on(schedule, after))))
            before = after
        return made

    def _run(self, schedule: Schedule, prompt: EncodedPrompt, before: Sequence[SpeedSample]) -> Run:
        """A run with what was timed before it; made again where it lost a lane."""
        at_s, made, given_up = self._probe.now_s(), self._generate(schedule, prompt), None
        if made.trace.events:
            given_up = made.trace
            self.warm_up(schedule, prompt)
            before = self._probe.look(schedule)
            at_s, made = self._probe.now_s(), self._generate(schedule, prompt)
        around = _on(schedule, before)
        return Run(trace=made.trace, tokens=made.tokens, at_s=at_s, around=around, given_up=given_up)

    def _generate(self, schedule: Schedule, prompt: EncodedPrompt) -> Generation:
        return self._engine.generate(schedule, prompt.ids, max_new_tokens=self._max_new_tokens)


def _on(schedule: Schedule, samples: Sequence[SpeedSample]) -> tuple[SpeedSample, ...]:
    """Those on the schedule's lanes."""
    return tuple(sample for sample in samples if sample.lane in lanes_of(schedule))
