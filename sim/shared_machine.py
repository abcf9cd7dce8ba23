"""Work on two lanes that slow each other: it goes at a pace that changes when the other lane starts or stops.

Only then is it re-timed: what has been done is settled, and the end is scheduled anew. An end that was scheduled
before stays in SimPy's queue and is ignored when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from simpy import Environment, Event, Timeout

from sim.course import Course

TARGET, DRAFT = 0, 1


class SharedMachine:
    """The two lanes and the run of work on each."""

    __slots__ = ("_course", "env", "runs")

    def __init__(self, course: Course) -> None:
        self._course = course
        self.env: Environment = course.env
        self.runs: list[Run | None] = [None, None]

    def start(self, side: int, what: int | str, work_s: float, on_end: Callable[[Run], None]) -> Run:
        """Begin on an idle lane now.

        Args:
            side: `TARGET` or `DRAFT`.
            what: the target's segment, or the kind of the draft's steps.
            work_s: what it takes alone.
            on_end: called at its end; may start the lane's next run.
        """
        run = self.runs[side] = Run(self, side, what, work_s, on_end)
        self._retime()
        return run

    def end(self, run: Run) -> None:
        """The work of `run` is done."""
        self.runs[run.side] = None
        run.on_end(run)
        if self.runs[run.side] is None:
            self._retime()

    def _retime(self) -> None:
        target, draft = self.runs
        if target is not None and draft is not None:
            course = self._course
            target_slowdown, draft_slowdown = course.costs.slowdowns[target.what, draft.what]
            target.set_pace(target_slowdown[course.place])
            draft.set_pace(draft_slowdown[course.place])
        elif target is not None:
            target.set_pace(1.0)
        elif draft is not None:
            draft.set_pace(1.0)


class Run:
    """Work under way on one lane; times are what it takes alone unless said otherwise."""

    __slots__ = ("_done_s", "_machine", "_marks", "_since_s", "_slowdown", "_wake", "on_end", "side", "what", "work_s")

    def __init__(
        self, machine: SharedMachine, side: int, what: int | str, work_s: float, on_end: Callable[[Run], None]
    ) -> None:
        self.side = side
        self.what = what
        self.work_s = work_s
        self.on_end = on_end
        self._machine = machine
        self._done_s = 0.0
        self._since_s: float = machine.env.now
        self._slowdown = 0.0
        self._wake: Event | None = None
        self._marks: list[tuple[float, float]] = []

    def settle(self) -> float:
        """Work done until now."""
        now_s = self._machine.env.now
        if self._since_s < now_s:
            self._done_s += (now_s - self._since_s) / self._slowdown
            self._since_s = now_s
        return self._done_s

    def set_pace(self, slowdown: float) -> None:
        """Go on at another speed, if it is another."""
        if slowdown != self._slowdown:
            self._marks.append((self._machine.env.now, self.settle()))
            self._slowdown = slowdown
            self._schedule_end()

    def cut(self, work_s: float) -> None:
        """End when `work_s` are done, which is not before now."""
        self.settle()
        self.work_s = work_s
        self._schedule_end()

    def times_s(self, works_s: Sequence[float]) -> list[float]:
        """When it started, and when each of these amounts of work was done; to be asked at its end."""
        times, done = zip(*self._marks, (self._machine.env.now, self.work_s), strict=True)
        return [times[0], *np.interp(works_s, done, times).tolist()]

    def _schedule_end(self) -> None:
        left_s = max(0.0, self.work_s - self._done_s)
        self._wake = Timeout(self._machine.env, left_s * self._slowdown)
        self._wake.callbacks.append(self._end)

    def _end(self, event: Event) -> None:
        if event is self._wake:
            self._machine.end(self)
