"""Decides who runs the next prompt of a demo, and when recording further prompts tells more than running one.

A schedule that is surely slower than others runs no further prompts, so that the time goes to those that may win.
"""

from collections.abc import Callable, Collection, Sequence
from math import isinf
from typing import NamedTuple

from decoding.schedule import Schedule
from mirrorsd.compare.measured_answer import KnownRounds, measured_schedules, put_together
from mirrorsd.compare.runs import Measured
from mirrorsd.demo.demo_plan import FAIR_PROMPTS, run_s
from planner.measured_verdict import MeasuredSchedule, Runs
from planner.paired_ratio import Ratio
from planner.plan import Plan
from planner.search.search import Candidate


class FurtherPrompts(NamedTuple):
    """Prompts that could be recorded after the runs: seconds of loading the models and of each one, and how many."""

    loading_s: float
    record_s: float
    num_prompts: int

    def has_one_within(self, left_s: float) -> bool:
        """Return whether at least one can be recorded in the time left."""
        return self.num_prompts > 0 and self.loading_s + self.record_s <= left_s

    def pay_more(self, ratio: Ratio, run_s: float, next_s: float, left_s: float) -> bool:
        """Return whether recording for all of the `left_s` seconds narrows the interval of a ratio the most.

        The alternatives are running one or more prompts, of `next_s` each after `run_s` so far, and recording for the
        rest of the time. The error of the machine falls with the root of the time of runs, that of prompts with the
        root of their number (the allocation of two-phase sampling); after one prompt, the former is not known.
        """

        def square(num_runs: int) -> float:
            spent_s = num_runs * next_s
            recorded = max(0.0, (left_s - spent_s - self.loading_s) // self.record_s)
            more = min(recorded, self.num_prompts) / ratio.num_pairs
            return ratio.machine_error**2 / (1 + spent_s / run_s) + ratio.prompts_error**2 / (1 + more)

        if not self.num_prompts or isinf(ratio.machine_error):
            return False
        return all(square(0) < square(count) for count in range(1, int(left_s / next_s) + 1))


class Race:
    """Decides after every prompt which schedules run the next one."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        plan: Plan,
        cuts: Sequence[int],
        *,
        end_s: float,
        clock: Callable[[], float],
        further: FurtherPrompts,
    ) -> None:
        """Take candidates of a plan, the tokens that texts are cut to, and when to end, in seconds of `clock`."""
        self._candidates, self._plan, self._cuts = candidates, plan, cuts
        self._known = KnownRounds(plan.profile, [plan.record])
        self._end_s, self._clock, self._start_s = end_s, clock, 0.0
        self._further = further

    def going_on(self, measured: Measured) -> list[Schedule]:
        """Return the schedules that run the next prompt: all of them for the first prompt.

        They are those that have not lost; where time is short, or would narrow the verdict's interval more by further
        prompts' records, only the two of the answer; and none where this is true of these two as well.
        """
        if not measured.num_prompts:
            self._start_s = self._clock()  # loading and warming up, which came before, are not repeated
            return [one.schedule for one in self._candidates]
        names = [str(place) for place in range(len(self._candidates))]
        found = put_together(self._candidates, names, measured, self._plan.profile, self._plan.record)
        runs = Runs.of(measured_schedules(self._candidates, *found, self._known))
        finalists = [one for plain in (True, False) for one in runs.side(plain=plain)[:1]]
        if any(len(one.prompts) < measured.num_prompts for one in finalists):
            return []  # its lane has no more room: the other's runs alone would tell nothing
        lost = _lost(runs, finalists) if measured.num_prompts >= FAIR_PROMPTS else ()
        left = [one.schedule for one in self._candidates if one.schedule not in lost]
        is_by_rounds = len(finalists) > 1 and runs.by_rounds(*finalists)
        ratio = runs.ratio(*reversed(finalists)) if is_by_rounds else None
        for some in (left, [one.schedule for one in finalists]):
            if self._pays(some, measured, ratio):
                return some
        return []

    def _pays(self, some: Collection[Schedule], measured: Measured, ratio: Ratio | None) -> bool:
        """Return whether there is time for the next prompt by some schedules, and no better use of the time.

        `ratio` is None where the rounds of runs are not those recorded, so that further records would tell nothing.
        """
        now_s = self._clock()
        pace = (now_s - self._start_s) / self._done_s(measured, {one.schedule for one in self._candidates})
        next_s = pace * sum(self._run_s(one, measured.num_prompts) for one in self._candidates if one.schedule in some)
        left_s = self._end_s - now_s
        if next_s > left_s or ratio is None:
            return next_s <= left_s
        return not self._further.pay_more(ratio, pace * self._done_s(measured, some), next_s, left_s)

    def _done_s(self, measured: Measured, some: Collection[Schedule]) -> float:
        """Return the estimated seconds of the runs so far of some schedules."""
        return sum(
            self._run_s(one, place)
            for one, runs in zip(self._candidates, measured.runs, strict=True)
            for place in range(len(runs))
            if one.schedule in some
        )

    def _run_s(self, one: Candidate, place: int) -> float:
        return run_s(one, self._plan.profile, self._plan.record.prompts[place], self._cuts[place])


def _lost(runs: Runs, finalists: Collection[MeasuredSchedule]) -> set[Schedule]:
    """Return the schedules measured surely slower than another, except the finalists."""

    def beats(other: MeasuredSchedule, one: MeasuredSchedule) -> bool:
        ratio = runs.ratio(other, one)
        # where rounds are not known, the noise of runs is in the other error
        return (ratio.on_these if ratio.machine_error else ratio).outcome == "faster"

    def is_beaten(one: MeasuredSchedule) -> bool:
        return any(beats(other, one) for other in runs.finished if other is not one)

    return {one.schedule for one in runs.finished if one not in finalists and is_beaten(one)}
