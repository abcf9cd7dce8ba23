"""Entries of `demo` and `validate` results: predicted and measured numbers and rounds of every schedule; warnings."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any, Final

from calibrate.compare_traces import Comparison, Divergence
from decoding.metrics import ttft_s
from decoding.trace import NOT_COMMITTED, Round
from hwprofiles.other_use import Use
from hwprofiles.profile import Profile
from mirrorsd.compare.measured_answer import JudgedRuns
from mirrorsd.compare.numbers import candidate_numbers, measured_numbers, picked, ratio_entry
from mirrorsd.model_pair import ModelPair, name_of
from planner.paired_ratio import Ratio
from planner.plan import Plan
from planner.report.report_data import ScheduleResult
from planner.wording import counted, factor

_DOUBTFUL_MARGIN: Final = 0.5
"""Two logits closer than this may swap in bfloat16: it has 8 bits, so that logits of 16 to 32 are rounded to 1/8."""
ALARM: Final = "This should not happen: on this machine a row's result does not depend on the other rows of the pass."


def rounds_in_words(comparisons: Sequence[Comparison], dtype: str, *, is_row_invariant: bool | None = None) -> str:
    """Say how many texts had other rounds than simulated, for chains and for trees, and describe the first of each."""
    if all(one.same_rounds for one in comparisons):
        num_texts = sum(one.num_prompts for one in comparisons)
        return f"All {counted(num_texts, 'text')} had exactly the simulated rounds."
    parts = []
    for name, is_tree in (("chains", False), ("trees", True)):
        of_kind = [one for one in comparisons if one.is_tree == is_tree]
        num_texts = sum(one.num_prompts for one in of_kind)
        if not num_texts:
            continue
        diverged = [(one, found) for one in of_kind for found in one.divergences]
        parts.append(f"{len(diverged)} of {counted(num_texts, 'text')} with {name} had other rounds than simulated.")
        for one, found in diverged[:1]:
            where = f"First: {one.schedule}, prompt {found.prompt}, {divergence_in_words(found)}"
            parts += [where, *_cause(found, dtype)]
        if is_row_invariant and any(map(is_unexplained, of_kind)):
            parts.append(ALARM)
    return " ".join(parts)


def is_unexplained(comparison: Comparison) -> bool:
    """Return whether chains diverged from the simulated rounds without losing a lane: a fault if rows are invariant."""
    return not comparison.is_tree and any(found.by != "lost lane" for found in comparison.divergences)


def divergence_in_words(found: Divergence) -> str:
    """Return where the measured rounds first differ from the simulated ones, and both rounds."""
    return (
        f"round {found.round + 1}, after {counted(found.position, 'new token')}: "
        f"predicted {_decided(found.simulated)}, measured {_decided(found.measured)}."
    )


def _cause(found: Divergence, dtype: str) -> list[str]:
    if found.by != "target" or found.margin is None:
        return [f"The {found.by} caused it."]
    is_tie = dtype == "bfloat16" and found.margin < _DOUBTFUL_MARGIN
    tie = f": in {dtype}, rounding may swap them when other rows are in the pass" if is_tie else ""
    return [f"The target's two best logits are {found.margin:.3f} apart there{tie}."]


def _decided(entry: Round | None) -> str:
    if entry is None:
        return "no further round"
    next_token = entry.outcome[1]
    then = "the end" if next_token == NOT_COMMITTED else f"token {next_token}"
    branch = {None: "", True: " (hit)", False: " (miss)"}[entry.hit]
    return f"{entry.num_accepted} of {entry.num_drafted} accepted, then {then}{branch}"


_CHANGED: Final = 0.1
"""A warning is given for larger relative changes of the machine's speed, or of how much two lanes slow each other."""


def schedule_entries(judged: JudgedRuns, *, is_row_invariant: bool | None = None) -> list[dict[str, Any]]:
    """Return one object per schedule, in order; times, also `plain_tpot_s`, are of the texts that it ran."""
    return [
        {
            **candidate_numbers(comparison.schedule, result.candidate),
            "measured": {**measured_numbers(result.measured), "tpot_s_at_anchor": result.measured_at_anchor_s},
            "ttft": ttft_entry(result),
            "tpot_error": result.error,
            "tpot_error_at_anchor": result.error_at_anchor,
            "speedup_measured": ratio_entry(result.ratio),
            "plain_tpot_s": result.plain_s,
            "plain": None if result.plain_s is None else judged.plain,
            "num_prompts": len(result.measured),
            "same_rounds": comparison.same_rounds,
            "rounds_equal": {"equal": comparison.num_equal, "of": comparison.num_prompts},
            "rounds_alarm": bool(is_row_invariant) and is_unexplained(comparison),
            "divergences": [
                {"prompt_id": one.prompt, **picked(one, "round position by margin"), "text": divergence_in_words(one)}
                for one in comparison.divergences
            ],
            "lost_lane": any(event.is_loss for run in runs for event in run.events),
            "events": [f"{event.lane}: {event.text}" for run in runs for event in run.events],
        }
        for result, comparison, runs in zip(judged.results, judged.comparisons, judged.measured.runs, strict=True)
    ]


def accuracy(judged: JudgedRuns) -> dict[str, Any]:
    """Return the absolute errors of the predictions, and the schedule with the largest error (not corrected)."""
    errors = [abs(one.error) for one in judged.results]
    at_anchor = [abs(one.error_at_anchor) for one in judged.results]
    return {
        "median_error": median(errors),
        "worst_error": max(errors),
        "median_error_at_anchor": median(at_anchor),
        "worst_error_at_anchor": max(at_anchor),
        "worst_schedule": judged.names[errors.index(max(errors))],
        "same_rounds": all(one.same_rounds for one in judged.comparisons),
    }


def platform_entry(host: dict[str, Any], pair: ModelPair) -> dict[str, Any]:
    """Return the machine and the models that ran on it."""
    models = {"target": pair.target, "drafter": name_of(pair.drafter), "exits": name_of(pair.exits)}
    return host | models | {"dtype": pair.dtype}


def outcome_facts(judged: JudgedRuns, plan: Plan, pair: ModelPair, *, used: Use | None) -> dict[str, Any]:
    """Return the facts about the runs and the answer; `used` is the CPU share of other programs, None if not known."""
    verdict, results = judged.verdict, judged.results
    return {
        "platform": platform_entry(plan.profile.host, pair),
        "calibration_s": plan.profile.calibration_s,
        "num_prompts": judged.measured.num_prompts,
        "num_recorded_prompts": judged.num_recorded,
        "max_new_tokens": plan.record.max_new_tokens,
        "busy": None if used is None else used.share,
        "pays": verdict.pays,
        "winner": judged.answer and judged.answer.recommended,
        "speedup": claim_entry(judged),
        "by_length": [
            {"max_new_tokens": length} | (ratio_entry(one) or {}) for length, one in sorted(verdict.by_length.items())
        ],
        "turns_at": verdict.turns_at,
        "coverage": fmean(one.is_held for one in results),
    }


def speedup_entry(ratio: Ratio | None) -> dict[str, Any] | None:
    """Return a ratio for prompts like those recorded, and under "scope" also for these very prompts."""
    entry = ratio_entry(ratio)
    if entry is None or ratio is None:
        return None
    return entry | {"scope": {"these_prompts": ratio_entry(ratio.on_these), "like_these": entry}}


def claim_entry(judged: JudgedRuns) -> dict[str, Any] | None:
    """Return the ratio of the verdict, the names of its two schedules, and how many prompts both of them ran."""
    claim = judged.verdict.claim
    entry = None if claim is None else speedup_entry(claim.ratio)
    if claim is None or entry is None:
        return None
    counts = {name: len(one.measured) for name, one in zip(judged.names, judged.results, strict=True)}
    return entry | {"of": claim.one, "over": claim.other, "num_prompts": min(counts[claim.one], counts[claim.other])}


def ttft_entry(result: ScheduleResult) -> dict[str, float] | None:
    """Return the mean time to the first token, predicted and measured, and the error; None if either is not known."""
    predicted_s, measured_s = result.candidate.prediction.ttft_s, ttft_s(result.measured)
    if predicted_s is None or measured_s is None:
        return None
    return {"predicted_s": predicted_s, "measured_s": measured_s, "error": predicted_s / measured_s - 1}


def disturbed_runs(judged: JudgedRuns) -> Iterator[str]:
    """Yield a warning for every event in a run, such as the death of a lane."""
    for comparison, runs in zip(judged.comparisons, judged.measured.runs, strict=True):
        for place, run in enumerate(runs, 1):
            for event in run.events:
                again = run.given_up is not None and event in run.given_up.events
                effect = "the run was repeated" if again else "the run counts all the same"
                where = f"The run of {comparison.schedule} on text {place} of {comparison.num_prompts}"
                what = f" lost lane {event.lane} ({event.text})" if event.is_loss else f": {event.text}"
                yield f"{where}{what}; {effect}."


def changed_speed(judged: JudgedRuns) -> Iterator[str]:
    """Yield a warning if the machine's speed changed during the runs and measured times miss their intervals."""
    speed = median(one.measured_at_anchor_s / one.measured_s for one in judged.results)
    missed = sum(not one.is_held for one in judged.results)
    if missed and abs(speed - 1) > _CHANGED:
        yield (
            f"During the runs this machine had {factor(speed)} its speed just before them, by the same work timed in "
            f"both. Outside their intervals: {missed} of {counted(len(judged.results), 'measured time')}."
            + (" Speed-ups are not affected, since schedules were run in turn." if judged.plain is not None else "")
        )


def changed_slowdowns(judged: JudgedRuns, profile: Profile) -> Iterator[str]:
    """Yield a warning for lanes that slowed each other more, or less, during the runs than during calibration."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for result, runs in zip(judged.results, judged.measured.runs, strict=True):
        schedule = result.candidate.schedule
        seen = [run.anchors.slowdown(schedule) for run in runs]
        if schedule.draft_lane is not None:
            pair = schedule.target_lane, schedule.draft_lane
            found.setdefault(pair, []).extend(one for one in seen if one is not None)
    for pair, slowdowns in found.items():
        then = profile.anchor_slowdown(*pair)
        if not slowdowns or then is None:
            continue
        now = [fmean(column) for column in zip(*slowdowns, strict=True)]
        if max(abs(one / other - 1) for one, other in zip(now, then, strict=True)) > _CHANGED:
            yield (
                f"{pair[0]} and {pair[1]} slowed each other by {factor(now[0])} and {factor(now[1])} during the runs, "
                f"but by {factor(then[0])} and {factor(then[1])} during calibration; corrected times are for the "
                "latter."
            )
