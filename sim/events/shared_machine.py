"""Work on two lanes that slow each other: it goes at a pace that changes when the other lane starts or stops.

Only then is it re-timed: what has been done at the old pace is settled, and the next end is scheduled. An end that
was scheduled before stays in SimPy's queue and is ignored when it comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
from simpy import Event, Timeout

from sim.events.simulated_sequence import SimulatedSequence

TARGET, DRAFT = 0, 1


class Run:
    """Work under way on one lane; times are what it takes alone.

    Attributes:
        what: the target's segment, or the kind of the draft's steps.
        work_s: all of it.
        done_s: what was done when the machine last settled.
        slowdown: time over time alone since then.
        marks: (time, work done) whenever the machine settled; for traces with spans only.
    """

    __slots__ = ("done_s", "marks", "slowdown", "what", "work_s")

    def __init__(self, what: int | str, work_s: float) -> None:
        self.what = what
        self.work_s = work_s
        self.done_s = 0.0
        self.slowdown = 1.0
        self.marks: list[tuple[float, float]] = []

    def times_s(self, works_s: Sequence[float]) -> list[float]:
        """When it started, and when each of these pieces of work ended; to be asked at its own end."""
        times, done = zip(*self.marks, strict=True)
        return [times[0], *np.interp(np.cumsum(works_s), done, times).tolist()]


Runs = Iterator[Run | None]
"""What a lane does, one run after the other: asked for the next one when one has ended, and gives None to wait."""


class SharedMachine:
    """The two lanes.

    Attributes:
        runs: what `TARGET` and `DRAFT` do; a lane that waits, or has not begun, goes on with `resume`.
    """

    __slots__ = ("_ending", "_env", "_now", "_sequence", "_settled_s", "_wake", "runs")

    def __init__(self, sequence: SimulatedSequence) -> None:
        self.runs: list[Runs] = [iter(()), iter(())]
        self._sequence = sequence
        self._env = sequence.env
        self._now: list[Run | None] = [None, None]
        self._settled_s = 0.0
        self._ending = TARGET
        self._wake: Event | None = None

    def resume(self, side: int, _: Event | None = None) -> None:
        """Let an idle lane go on."""
        run = next(self.runs[side], None)
        if run is not None:
            self._settle()
            self._occupy(side, run)
            self._set_pace()

    def cut(self, run: Run, step_s: float) -> int:
        """Let a run of equal steps end at its next boundary; the number of steps until there."""
        self._settle()
        num_steps = min(ceil(run.done_s / step_s), round(run.work_s / step_s))
        run.work_s = num_steps * step_s
        self._set_pace()
        return num_steps

    def _occupy(self, side: int, run: Run | None) -> None:
        """A lane begins a run, or is idle."""
        self._now[side] = run
        if run is not None and self._sequence.has_spans:
            run.marks.append((self._settled_s, 0.0))

    def _settle(self) -> None:
        """Count what has been done since the last time."""
        now_s = self._env.now
        if now_s == self._settled_s:
            return
        elapsed_s = now_s - self._settled_s
        self._settled_s = now_s
        target, draft = self._now
        if target is not None:
            target.done_s += elapsed_s / target.slowdown
        if draft is not None:
            draft.done_s += elapsed_s / draft.slowdown
        if self._sequence.has_spans:
            for run in filter(None, self._now):
                run.marks.append((now_s, run.done_s))

    def _set_pace(self) -> None:
        """Go on as fast as the lanes let each other, and wake up when the first of them has done its work."""
        target, draft = self._now
        side = TARGET
        if draft is None:
            if target is None:
                return
            target.slowdown = 1.0
            left_s = target.work_s - target.done_s
        elif target is None:
            draft.slowdown = 1.0
            side, left_s = DRAFT, draft.work_s - draft.done_s
        else:
            sequence = self._sequence
            of_target, of_draft = sequence.costs.slowdowns[target.what][draft.what]
            slowdown = target.slowdown = of_target[sequence.place]
            left_s = (target.work_s - target.done_s) * slowdown
            slowdown = draft.slowdown = of_draft[sequence.place]
            draft_left_s = (draft.work_s - draft.done_s) * slowdown
            if draft_left_s < left_s:
                side, left_s = DRAFT, draft_left_s
        self._ending = side
        wake = self._wake = Timeout(self._env, left_s if left_s > 0 else 0.0)
        wake.callbacks.append(self._end)

    def _end(self, event: Event) -> None:
        if event is not self._wake:
            return
        self._settle()
        side = self._ending
        run = self._now[side]
        assert run is not None, "nothing to end"
        run.done_s = run.work_s
        self._occupy(side, next(self.runs[side], None))
        self._set_pace()
