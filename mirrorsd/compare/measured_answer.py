"""Compares measured runs with simulations of the same prompts, and judges the runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from calibrate.compare_traces import Comparison, TracePair, compare
from decoding.metrics import num_tokens
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from mirrorsd.compare.runs import Measured, pace
from planner.measured_verdict import KnownTime, MeasuredSchedule, PromptTime, Runs, judge_measured, known_pairs
from planner.paired_ratio import Ratio
from planner.report.report_data import ScheduleResult
from planner.search.search import Candidate, rank
from planner.verdict import Claim, SpeculationVerdict
from planner.wording import schedule_names
from sim.evaluator import Evaluator
from sim.world import simulate

_LENGTHS: Final = (32, 64, 128, 256, 512, 1024, 2048)
"""Answer lengths (tokens) for which the ratio of the verdict is given, besides the record's longest text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRuns:
    """Runs with their predictions, and the verdict on them.

    Attributes:
        results, comparisons: predicted and measured times and rounds, one per schedule.
        num_recorded: the number of prompts with known rounds, for the schedule that has the most.
        repeating: prompts whose texts repeat themselves.
        speedup_without: the ratio of the verdict on all other prompts; None if there is none.
        plain: name of the plain schedule that the ratios of `results` are over; None without one.
    """

    measured: Measured = field(repr=False)
    results: tuple[ScheduleResult, ...] = field(repr=False)
    comparisons: tuple[Comparison, ...] = field(repr=False)
    verdict: SpeculationVerdict
    num_recorded: int
    repeating: tuple[str, ...] = ()
    speedup_without: Ratio | None = None
    plain: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the schedules in tables."""
        return tuple(one.schedule for one in self.comparisons)

    @property
    def answer(self) -> SpeculationVerdict | None:
        """Return the verdict if plain decoding and speculation were both run, else None."""
        return self.verdict if self.verdict.speedup is not None else None


def candidates_of(schedules: Sequence[Schedule], profile: Profile, record: AcceptanceRecord) -> list[Candidate]:
    """Return what is predicted of schedules, in their order; raise `MirrorsdError` if one cannot be predicted."""
    ranked = {one.schedule: one for one in rank(schedules, profile, record).candidates}
    return [ranked[schedule] for schedule in schedules]


class KnownRounds:
    """Simulated times of all recorded prompts."""

    def __init__(
        self, profile: Profile, records: Sequence[AcceptanceRecord], *, max_new_tokens: int | None = None
    ) -> None:
        """Take records of different prompts, which need not cover every schedule; texts are cut to `max_new_tokens`."""
        self._each = [(Evaluator(profile, one, max_new_tokens=max_new_tokens), one.prompts) for one in records]

    def of(self, schedule: Schedule) -> dict[str, KnownTime]:
        """Return a schedule's simulated times by prompt, from all records that cover the schedule."""
        return {
            prompt.name: KnownTime(time_s, prompt.category)
            for evaluator, prompts in self._each
            if evaluator.missing(schedule) is None
            for prompt, time_s in zip(prompts, evaluator.predict(schedule).prompt_decode_s, strict=True)
        }


def judge_runs(
    candidates: Sequence[Candidate],
    measured: Measured,
    profile: Profile,
    record: AcceptanceRecord,
    more: AcceptanceRecord | None = None,
) -> JudgedRuns:
    """Compare runs with predictions of the same texts, and judge the runs.

    `candidates` are predicted over all prompts of the record, of which the first ones were run; `more` is a record of
    further prompts, which need not cover all schedules.
    """
    records = [record, *([] if more is None else [more])]
    known = KnownRounds(profile, records)
    names = schedule_names([(one.schedule, one.placement) for one in candidates])
    results, comparisons = put_together(candidates, names, measured, profile, record)
    as_run = measured_schedules(candidates, results, comparisons, known)
    at_anchors = measured_schedules(candidates, results, comparisons, known, at_anchors=True)
    runs = Runs.of(as_run)
    verdict = judge_measured(as_run, at_anchors=at_anchors)
    repeating = tuple(prompt.name for one in records for prompt in one.prompts if prompt.repeats_itself)
    return JudgedRuns(
        measured=measured,
        results=tuple(
            replace(result, ratio=ratio) for result, ratio in zip(results, runs.over_plain(as_run), strict=True)
        ),
        comparisons=tuple(comparisons),
        verdict=replace(verdict, by_length=by_length(verdict.claim, runs, profile, records)),
        num_recorded=max(len(one.recorded) for one in as_run),
        repeating=repeating,
        speedup_without=without(repeating, verdict.claim, runs),
        plain=None if runs.baseline is None else runs.baseline.name,
    )


def put_together(
    candidates: Sequence[Candidate],
    names: Sequence[str],
    measured: Measured,
    profile: Profile,
    record: AcceptanceRecord,
) -> tuple[list[ScheduleResult], list[Comparison]]:
    """Compare runs of the record's first prompts with predictions and simulations of the same texts.

    The margins between logits are from the record, the pace of the machine is from the runs.
    """
    margins, texts = {prompt.name: prompt.margins.tolist() for prompt in record.prompts}, measured.texts(record)
    results, comparisons = [], []
    for candidate, name, runs in zip(as_run(candidates, measured, profile, record), names, measured.runs, strict=True):
        schedule = candidate.schedule
        simulated = tuple(simulate(schedule, profile, _first(texts, len(runs))))
        pairs = [
            TracePair(
                prompt=prompt.name,
                simulated=trace,
                measured=run.trace,
                pace=pace(run, schedule, candidate.prediction, profile),
                texts=(prompt.text.tolist(), run.tokens),
            )
            for prompt, trace, run in zip(texts.prompts, simulated, runs, strict=False)
        ]
        comparisons.append(compare(name, pairs, margins, is_tree=schedule.is_tree))
        traces = tuple(run.trace for run in runs)
        at_anchor_s = sum(comparisons[-1].at_anchor_s) / num_tokens(traces)
        results.append(
            ScheduleResult(candidate=candidate, simulated=simulated, measured=traces, measured_at_anchor_s=at_anchor_s)
        )
    return results, comparisons


def as_run(
    candidates: Sequence[Candidate], measured: Measured, profile: Profile, record: AcceptanceRecord
) -> list[Candidate]:
    """Return the candidates with predictions over the texts that each one has run."""
    texts, found = measured.texts(record), {}
    for count in {len(runs) for runs in measured.runs}:
        evaluator = Evaluator(profile, _first(texts, count))
        for one, runs in zip(candidates, measured.runs, strict=True):
            if len(runs) == count:
                found[one.schedule] = replace(one, prediction=evaluator.predict(one.schedule))
    return [found[one.schedule] for one in candidates]


def measured_schedules(
    recorded: Sequence[Candidate],
    results: Sequence[ScheduleResult],
    comparisons: Sequence[Comparison],
    known: KnownRounds,
    *,
    at_anchors: bool = False,
) -> list[MeasuredSchedule]:
    """Return the schedules to judge, with times as measured or, with `at_anchors`, corrected to the calibration's pace.

    `recorded` and `known` are for all recorded prompts, the other arguments for those that were run. A run whose rounds
    differ from the simulated ones, or that lost a lane, is not used to find the cost of rounds.
    """
    return [
        _measured_schedule(one, result, compared, known.of(one.schedule), at_anchors=at_anchors)
        for one, result, compared in zip(recorded, results, comparisons, strict=True)
    ]


def _measured_schedule(
    recorded: Candidate,
    result: ScheduleResult,
    compared: Comparison,
    recorded_s: Mapping[str, KnownTime],
    *,
    at_anchors: bool,
) -> MeasuredSchedule:
    times_s = compared.at_anchor_s if at_anchors else [trace.decode_s for trace in result.measured]
    diverged = {one.prompt for one in compared.divergences}
    each = zip(recorded_s, times_s, result.candidate.prediction.prompt_decode_s, result.measured, strict=False)
    prompts = {
        prompt: PromptTime(time_s, num_tokens([trace]), None if prompt in diverged or trace.has_loss else simulated_s)
        for prompt, time_s, simulated_s, trace in each
    }
    return MeasuredSchedule(
        name=compared.schedule,
        schedule=recorded.schedule,
        predicted_s=recorded.tpot_s,
        prompts=prompts,
        recorded=recorded_s,
    )


def without(prompts: Collection[str], claim: Claim | None, runs: Runs) -> Ratio | None:
    """Return the ratio of a claim on all recorded prompts but these; None if there are no others, or no claim."""
    if claim is None:
        return None
    named = {one.name: one for one in runs.finished}
    one, other = named[claim.one], named[claim.other]
    left = {name: time for name, time in one.recorded.items() if name not in prompts}
    known = known_pairs(left, other.recorded)
    return runs.ratio(one, other, recorded=known) if known.one else None


def by_length(
    claim: Claim | None, runs: Runs, profile: Profile, records: Sequence[AcceptanceRecord]
) -> dict[int, Ratio]:
    """Return the ratio of a claim for answers of several lengths, up to the record's longest text."""
    if claim is None:
        return {}
    named, longest = {one.name: one for one in runs.finished}, records[0].max_new_tokens
    one, other = named[claim.one], named[claim.other]
    found = {}
    for length in [*takewhile(lambda length: length < longest, _LENGTHS), longest]:
        known = KnownRounds(profile, records, max_new_tokens=length)
        found[length] = runs.ratio(one, other, recorded=known_pairs(known.of(one.schedule), known.of(other.schedule)))
    return found


def _first(record: AcceptanceRecord, count: int) -> AcceptanceRecord:
    return replace(record, prompts=record.prompts[:count])
