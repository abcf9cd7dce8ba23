"""Which schedules go on to the next prompt: what has lost is left out, and the time goes to those that may win."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoding.schedule import Schedule
from mirrorsd.compare.measured_answer import KnownRounds, as_run, measured_schedule
from mirrorsd.compare.runs import Measured
from mirrorsd.demo.demo_plan import FAIR_PROMPTS, run_s
from planner.measured_runs import MeasuredSchedule, Runs
from planner.plan import Plan
from planner.search.search import Candidate


class Race:
    """Runs of several schedules, from prompt to prompt."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        plan: Plan,
        cuts: Sequence[int],
        *,
        end_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Begin now.

        Args:
            candidates: with what is predicted of every prompt of the plan's record.
            plan: what they are of.
            cuts: tokens at which the text of each prompt is cut.
            end_s: when to be done, by the clock.
            clock: seconds.
        """
        self._candidates, self._plan, self._cuts = candidates, plan, cuts
        self._known = KnownRounds(plan.profile, [plan.record])
        self._end_s, self._clock, self._start_s = end_s, clock, clock()

    def going_on(self, measured: Measured) -> list[Schedule]:
        """Return the schedules that are to run the next prompt; none if there is no time for it."""
        num_done = measured.num_prompts
        left = [one for one in self._candidates if one.schedule not in self._lost(measured)]
        done_s = sum(
            self._run_s(one, place)
            for one, runs in zip(self._candidates, measured.runs, strict=True)
            for place in range(len(runs))
        )
        now_s = self._clock()
        pace = (now_s - self._start_s) / done_s
        next_s = pace * sum(self._run_s(one, num_done) for one in left)
        return [] if now_s + next_s > self._end_s else [one.schedule for one in left]

    def _run_s(self, one: Candidate, place: int) -> float:
        return run_s(one, self._plan.profile, self._plan.record.prompts[place], self._cuts[place])

    def _lost(self, measured: Measured) -> set[Schedule]:
        """Return what is told to be slower than another one on these prompts.

        The two schedules that the answer is about stay: the plain and the drafting one predicted fastest.
        """
        if measured.num_prompts < FAIR_PROMPTS:
            return set()
        profile, record = self._plan.profile, self._plan.record
        simulated = as_run(self._candidates, measured, profile, record)
        each = enumerate(zip(self._candidates, simulated, measured.traces, strict=True))
        runs = Runs.of(
            [
                measured_schedule(str(place), one, own, [trace.decode_s for trace in traces], traces, self._known)
                for place, (one, own, traces) in each
            ]
        )
        stay = [one for plain in (True, False) for one in runs.side(plain=plain)[:1]]

        def is_beaten(one: MeasuredSchedule) -> bool:
            others = (other for other in runs.finished if other is not one)
            return any(runs.ratio(other, one).on_these.outcome == "faster" for other in others)

        return {one.schedule for one in runs.finished if one not in stay and is_beaten(one)}
