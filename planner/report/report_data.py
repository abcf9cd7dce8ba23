"""The data of a report: predictions, simulated traces and measured runs, from which the page is computed."""

from dataclasses import dataclass

from decoding.metrics import tpot_s
from decoding.trace import Trace
from planner.paired_ratio import Ratio
from planner.plan import Plan
from planner.search.search import Candidate
from planner.verdict import SpeculationVerdict
from planner.wording import Kind, kind_of, schedule_name, schedule_names


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleResult:
    """One schedule with its prediction, and a simulated and a measured trace for each prompt.

    Attributes:
        measured_at_anchor_s: measured time per token, corrected by the anchors to the speed that predictions are for.
        ratio: measured speed over that of the plain schedule that was predicted fastest, on the prompts that both ran;
            None if there are none.
    """

    candidate: Candidate
    simulated: tuple[Trace, ...]
    measured: tuple[Trace, ...]
    measured_at_anchor_s: float
    ratio: Ratio | None = None

    @property
    def name(self) -> str:
        """Return the name of the schedule."""
        return schedule_name(self.candidate.schedule, self.candidate.placement)

    @property
    def predicted_s(self) -> float:
        """Return predicted seconds per token."""
        return self.candidate.prediction.tpot_s

    @property
    def measured_s(self) -> float:
        """Measured time per token."""
        return tpot_s(self.measured)

    @property
    def error(self) -> float:
        """Return predicted over measured time, minus one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_held(self) -> bool:
        """Return whether the predicted interval holds the measured time."""
        return self.candidate.prediction.tpot_s_low <= self.measured_s <= self.candidate.prediction.tpot_s_high

    @property
    def plain_s(self) -> float | None:
        """Measured time per token of plain decoding on the texts that this schedule has run; None if unknown."""
        return None if self.ratio is None else self.ratio.value * self.measured_s

    @property
    def error_at_anchor(self) -> float:
        """Return the error with measured times corrected by the anchors, see `measured_at_anchor_s`."""
        return self.predicted_s / self.measured_at_anchor_s - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """Everything a report shows; results are in the order of the table.

    Attributes:
        footnotes: further remarks, such as whether the runs went through the simulated rounds.
        warning: shown before the answer, for example that other programs used the machine.
        sample: a prompt and the target's answer.
        command: the command that runs the recommended schedule.
        measured: the verdict by measured times, if plain decoding and speculation were run.
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
        """Return the answer of the page: by measured times if there is one, else by predicted times."""
        return self.measured or self.plan.verdict

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the results, each different from all others."""
        return schedule_names([(result.candidate.schedule, result.candidate.placement) for result in self.results])

    @property
    def are_prompts_alike(self) -> bool:
        """Return whether all schedules ran the same prompts."""
        return len({len(result.measured) for result in self.results}) == 1

    def fastest(self, kind: Kind) -> ScheduleResult | None:
        """Return the result of a kind with the shortest predicted time; None if there is none."""
        fitting = [result for result in self.results if kind_of(result.candidate.schedule) == kind]
        return min(fitting, key=lambda result: result.predicted_s, default=None)
