"""The same schedules over the same prompts in both worlds: what was run is simulated, compared and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from calibrate.validate import Comparison, TracePair, compare
from decoding.metrics import num_tokens
from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from mirrorsd.compare.pace import pace
from mirrorsd.compare.runs import Measured, Run
from planner.measured_runs import MeasuredSchedule, PromptTime, Runs
from planner.measured_verdict import judge_measured
from planner.paired_ratio import Ratio
from planner.plan import Plan
from planner.report.report_data import ScheduleResult
from planner.search.comparison import comparer
from planner.search.search import Candidate, rank
from planner.verdict import SpeculationVerdict
from planner.wording import schedule_names
from sim.world import simulate


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRuns:
    """Runs next to their predictions, and what follows from them.

    Attributes:
        measured: the runs.
        results: predicted and measured, one per schedule.
        comparisons: their rounds and times.
        ratios: how many times as fast each schedule was as the plain one predicted fastest, in pairs of prompts; None
            if no plain one was run.
        verdict: whether speculation pays, and which schedule is recommended.
    """

    measured: Measured = field(repr=False)
    results: tuple[ScheduleResult, ...] = field(repr=False)
    comparisons: tuple[Comparison, ...] = field(repr=False)
    ratios: tuple[Ratio | None, ...]
    verdict: SpeculationVerdict

    @property
    def names(self) -> tuple[str, ...]:
        """The schedules' names in tables."""
        return tuple(one.schedule for one in self.comparisons)

    @property
    def answer(self) -> SpeculationVerdict | None:
        """The verdict, if plain decoding and speculation were both run; else runs tell nothing of what pays."""
        return self.verdict if self.verdict.speedup is not None else None


def judge_runs(candidates: Sequence[Candidate], measured: Measured, plan: Plan) -> JudgedRuns:
    """Compare runs with what is predicted of the same prompts, and judge them."""
    results = put_together(candidates, measured, plan.profile, plan.record)
    names = schedule_names([(one.candidate.schedule, one.candidate.placement) for one in results])
    comparisons = compare_all(results, names, measured, plan.profile, plan.record)
    as_run, at_anchors = (
        [
            _measured_schedule(result, name, times, [prompt.name for prompt in plan.record.prompts])
            for result, name, times in zip(results, names, all_times, strict=True)
        ]
        for all_times in (
            [[trace.decode_s for trace in one.measured] for one in results],
            [one.at_anchor_s for one in comparisons],
        )
    )
    ratios = Runs.of(as_run).over_plain(as_run)
    predicted = comparer(plan.profile, plan.record)
    return JudgedRuns(
        measured=measured,
        results=tuple(map(_with_anchors, results, comparisons, ratios)),
        comparisons=tuple(comparisons),
        ratios=ratios,
        verdict=judge_measured(
            as_run, predicted=lambda one, other: predicted(one, other).outcome, at_anchors=at_anchors
        ),
    )


def put_together(
    candidates: Sequence[Candidate], measured: Measured, profile: Profile, record: AcceptanceRecord
) -> tuple[ScheduleResult, ...]:
    """Join what was measured, on the first prompts of the record, with what is predicted for the very same prompts."""
    common = replace(record, prompts=record.prompts[: measured.num_prompts])
    predicted = {one.schedule: one for one in rank([one.schedule for one in candidates], profile, common).candidates}
    return tuple(
        ScheduleResult(
            candidate=predicted[candidate.schedule],
            simulated=tuple(simulate(candidate.schedule, profile, common)),
            measured=tuple(traces),
        )
        for candidate, traces in zip(candidates, measured.traces, strict=True)
    )


def compare_all(
    results: Sequence[ScheduleResult],
    names: Sequence[str],
    measured: Measured,
    profile: Profile,
    record: AcceptanceRecord,
) -> list[Comparison]:
    """Rounds and times of every schedule, with the target's margins from the record and the machine's pace."""
    margins = {prompt.name: prompt.margins.tolist() for prompt in record.prompts}
    return [
        compare(
            name,
            _pairs(result, runs, profile, record),
            margins,
            is_tree=result.candidate.schedule.is_tree,
        )
        for result, runs, name in zip(results, measured.runs, names, strict=True)
    ]


def _measured_schedule(
    result: ScheduleResult, name: str, times_s: Sequence[float], prompts: Sequence[str]
) -> MeasuredSchedule:
    """Return the input of the verdict."""
    return MeasuredSchedule(
        name=name,
        schedule=result.candidate.schedule,
        predicted_s=result.predicted_s,
        prompts={
            prompt: PromptTime(seconds, num_tokens([trace]))
            for prompt, seconds, trace in zip(prompts, times_s, result.measured, strict=False)
        },
    )


def _with_anchors(result: ScheduleResult, comparison: Comparison, ratio: Ratio | None) -> ScheduleResult:
    """Return the result as a page shows it."""
    return replace(
        result,
        measured_at_anchor_s=comparison.measured_tpot_s_at_anchor,
        speedup=None if ratio is None else (ratio.value, ratio.low, ratio.high),
    )


def _pairs(result: ScheduleResult, runs: Sequence[Run], profile: Profile, record: AcceptanceRecord) -> list[TracePair]:
    candidate = result.candidate
    return [
        TracePair(
            prompt=prompt.name,
            simulated=simulated,
            measured=run.trace,
            pace=pace(run, candidate.schedule, candidate.prediction, profile),
            texts=(prompt.text.tolist(), run.tokens) if run.tokens else None,
        )
        for prompt, simulated, run in zip(record.prompts, result.simulated, runs, strict=False)
    ]
