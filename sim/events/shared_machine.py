"""Work on two lanes that slow each other: it goes at a pace that changes when the other lane starts or stops.

Only then is it re-timed: what has been done at the old pace is settled, and the next end is scheduled. An end that
was scheduled before stays in SimPy's queue and is ignored when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np
from simpy import Event, Timeout

from sim.events.simulated_sequence import SimulatedSequence

TARGET, DRAFT = 0, 1


class Run:
    """Work under way on one lane; times are what it takes alone.

    Attributes:
        side: `TARGET` or `DRAFT`.
        what: the target's segment, or the kind of the draft's steps.
        work_s: all of it.
        done_s: what was done when the machine last settled.
        slowdown: time over time alone since then.
        on_end: called when all is done; what the lane goes on with at once, if anything.
        marks: (time, work done) whenever the machine settled; for traces with spans only.
    """

    __slots__ = ("done_s", "marks", "on_end", "side", "slowdown", "what", "work_s")

    def __init__(self, side: int, what: int | str, work_s: float, on_end: Callable[[Run], Run | None]) -> None:
        self.side = side
        self.what = what
        self.work_s = work_s
        self.on_end = on_end
        self.done_s = 0.0
        self.slowdown = 1.0
        self.marks: list[tuple[float, float]] = []

    def times_s(self, works_s: Sequence[float]) -> list[float]:
        """When it started, and when each of these amounts of work was done; to be asked at its end."""
        times, done = zip(*self.marks, strict=True)
        return [times[0], *np.interp(works_s, done, times).tolist()]


class SharedMachine:
    """The two lanes and the run of work on each."""

    __slots__ = ("_ending", "_runs", "_sequence", "_settled_s", "_wake")

    def __init__(self, sequence: SimulatedSequence) -> None:
        self._sequence = sequence
        self._runs: list[Run | None] = [None, None]
        self._settled_s = 0.0
        self._ending: Run | None = None
        self._wake: Event | None = None

    def start(self, run: Run) -> None:
        """Begin on an idle lane now."""
        self._settle()
        self._occupy(run.side, run)
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
        self._runs[side] = run
        if run is not None and self._sequence.has_spans:
            run.marks.append((self._settled_s, 0.0))

    def _settle(self) -> None:
        """Count what has been done since the last time."""
        sequence = self._sequence
        now_s = sequence.env.now
        elapsed_s = now_s - self._settled_s
        if not elapsed_s:
            return
        self._settled_s = now_s
        for run in self._runs:
            if run is not None:
                run.done_s += elapsed_s / run.slowdown
                if sequence.has_spans:
                    run.marks.append((now_s, run.done_s))

    def _set_pace(self) -> None:
        """Go on as fast as the lanes let each other, and wake up when the first of them has done its work."""
        target, draft = self._runs
        sequence = self._sequence
        if target is None or draft is None:
            run = target or draft
            if run is None:
                return
            run.slowdown = 1.0
            left_s = run.work_s - run.done_s
        else:
            of_target, of_draft = sequence.costs.slowdowns[target.what][draft.what]
            target.slowdown, draft.slowdown = of_target[sequence.place], of_draft[sequence.place]
            run, left_s = target, (target.work_s - target.done_s) * target.slowdown
            draft_left_s = (draft.work_s - draft.done_s) * draft.slowdown
            if draft_left_s < left_s:
                run, left_s = draft, draft_left_s
        self._ending = run
        wake = self._wake = Timeout(sequence.env, left_s if left_s > 0 else 0.0)
        wake.callbacks.append(self._end)

    def _end(self, event: Event) -> None:
        run = self._ending
        if event is not self._wake or run is None:
            return
        self._settle()
        run.done_s = run.work_s
        self._occupy(run.side, run.on_end(run))
        self._set_pace()
