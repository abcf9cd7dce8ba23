"""The data of a report: predictions, simulated traces and runs; the report computes the rest."""

from dataclasses import dataclass

from decoding.metrics import tpot_s
from decoding.trace import Trace
from planner.plan import Plan
from planner.search.search import Candidate
from planner.verdict import SpeculationVerdict
from planner.wording import Kind, kind_of, schedule_name, schedule_names


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleResult:
    """One schedule in both worlds: its prediction, and a trace per prompt in each, measured ones if it was run.

    `measured_at_anchor_s` is the measured time per token, had the machine kept the speed of calibration; `speedup` the
    measured speed over that of plain decoding, and the ends of its interval. Either is None if unknown.
    """

    candidate: Candidate
    simulated: tuple[Trace, ...]
    measured: tuple[Trace, ...] = ()
    measured_at_anchor_s: float | None = None
    speedup: tuple[float, float, float] | None = None

    @property
    def name(self) -> str:
        """Return the schedule in a few words."""
        return schedule_name(self.candidate.schedule, self.candidate.placement)

    @property
    def predicted_s(self) -> float:
        """Return predicted seconds per token."""
        return self.candidate.prediction.tpot_s

    @property
    def measured_s(self) -> float | None:
        """Measured time per token; None if the schedule was not run."""
        return tpot_s(self.measured) if self.measured else None

    @property
    def error(self) -> float | None:
        """Return predicted over measured time, minus one; None if the schedule was not run."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else None

    @property
    def is_held(self) -> bool:
        """Return whether the predicted interval holds the measured time; false if the schedule was not run."""
        found, prediction = self.measured_s, self.candidate.prediction
        return found is not None and prediction.tpot_s_low <= found <= prediction.tpot_s_high

    @property
    def plain_s(self) -> float | None:
        """Measured time per token of plain decoding on the texts that this schedule has run; None if unknown."""
        return self.speedup[0] * self.measured_s if self.speedup and self.measured_s else None

    @property
    def error_at_anchor(self) -> float | None:
        """Return the error at the speed that the lanes had during calibration, by their anchors; None if not known."""
        return self.predicted_s / self.measured_at_anchor_s - 1 if self.measured_at_anchor_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """Everything a report shows; results are in the order of the table.

    Attributes:
        footnotes: further remarks, such as whether the runs went through the simulated rounds.
        warning: to be read before the answer, such as that other programs used the machine.
        sample: a prompt and the target's answer.
        command: runs the recommended schedule.
        measured: the verdict after real runs; without it the answer is what was predicted.
    """

    title: str
    created: str
    plan: Plan
    results: tuple[ScheduleResult, ...]
    footnotes: tuple[str, ...] = ()
    warning: str | None = None
    sample: tuple[str, str] | None = None
    command: str | None = None
    measured: SpeculationVerdict | None = None

    @property
    def verdict(self) -> SpeculationVerdict:
        """Return the answer of the page: that of the runs where they were judged, else that of the prediction."""
        return self.measured or self.plan.verdict

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the results, each different from all others."""
        return schedule_names([(result.candidate.schedule, result.candidate.placement) for result in self.results])

    @property
    def are_prompts_alike(self) -> bool:
        """Return whether all schedules ran the same prompts."""
        return len({len(result.measured) for result in self.results if result.measured}) <= 1

    @property
    def errors(self) -> tuple[float, ...]:
        """Signed errors of all schedules that were run."""
        return tuple(result.error for result in self.results if result.error is not None)

    @property
    def errors_at_anchor(self) -> tuple[float, ...]:
        """Return the errors at the speed of calibration, of all schedules of which they are known."""
        return tuple(result.error_at_anchor for result in self.results if result.error_at_anchor is not None)

    def fastest(self, kind: Kind) -> ScheduleResult | None:
        """Return the result of a kind with the shortest predicted time; None if there is none."""
        fitting = [result for result in self.results if kind_of(result.candidate.schedule) == kind]
        return min(fitting, key=lambda result: result.predicted_s, default=None)
