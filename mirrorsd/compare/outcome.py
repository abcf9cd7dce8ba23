"""What scripts get of `demo` and `validate`: predicted and measured numbers of every schedule, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrate.validate import Comparison, Divergence, accuracy
from decoding.trace import NOT_COMMITTED, Round
from mirrorsd.compare.numbers import candidate_numbers, measured_numbers
from mirrorsd.model_pair import ModelPair, name_of
from planner.report.report_data import ScheduleResult
from planner.wording import counted, error_percent, milliseconds

_DOUBTFUL_MARGIN = 0.5
"""Two logits closer than that may change places in bfloat16: it keeps 8 bits, and logits of 16 to 32 move by 1/8."""


def schedule_entries(results: Sequence[ScheduleResult], comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """One object per schedule, in the order given."""
    return [
        {
            **candidate_numbers(comparison.schedule, result.candidate),
            "measured": measured_numbers(result.measured[0]),
            "tpot_error": comparison.tpot_error,
            "same_rounds": comparison.same_rounds,
            "divergences": [_divergence(found) for found in comparison.divergences],
        }
        for result, comparison in zip(results, comparisons, strict=True)
    ]


def accuracy_entry(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """How good the predictions are, all schedules together."""
    found = accuracy(comparisons)
    return {
        "median_error": found.median_error,
        "worst_error": found.worst_error,
        "worst_schedule": found.worst_schedule,
        "same_rounds": found.same_rounds,
    }


def platform_entry(host: dict[str, Any], pair: ModelPair) -> dict[str, Any]:
    """The machine, and what ran on it."""
    models = {"target": pair.target, "drafter": name_of(pair.drafter), "exits": name_of(pair.exits)}
    return host | models | {"dtype": pair.dtype}


def measured_in_words(results: Sequence[ScheduleResult], names: Sequence[str], winner: str) -> str:
    """Whether the schedule predicted fastest was measured fastest; if not, how much faster another was."""
    measured = {
        name: measured_numbers(result.measured[0])["tpot_s"] for name, result in zip(names, results, strict=True)
    }
    fastest = min(measured, key=measured.__getitem__)
    own = milliseconds(measured[winner])
    if fastest == winner:
        return f"Measured: {own} per token, the fastest of the {len(names)} schedules that were run."
    lead = error_percent(measured[winner] / measured[fastest] - 1)
    return f"Measured: {own} per token. {fastest} was faster by {lead} ({milliseconds(measured[fastest])})."


def rounds_in_words(comparisons: Sequence[Comparison], dtype: str) -> str:
    """Whether both worlds went through the same rounds; if not, how many texts differ and where the first does."""
    num_texts = sum(one.num_prompts for one in comparisons)
    parted = [(one.schedule, first) for one in comparisons for first in one.divergences]
    if not parted:
        return f"All {counted(num_texts, 'text')} went through exactly the rounds that were simulated."
    schedule, first = parted[0]
    return (
        f"{counted(len(parted), 'text')} of {num_texts} left the simulated rounds. The first: {schedule}, prompt "
        f"{first.prompt}, {divergence_in_words(first)}{_why(first, dtype)}"
    )


def losses_in_words(results: Sequence[ScheduleResult], names: Sequence[str]) -> tuple[str, ...]:
    """What happened to a lane in a run, a sentence per schedule: such a run is slower, and its rounds are others."""
    sentences = []
    for result, name in zip(results, names, strict=True):
        told = [trace.events for traces in result.measured for trace in traces]
        hit = [events for events in told if events]
        if hit:
            first = hit[0][0]
            share = f"In {counted(len(hit), 'text')} of {len(told)}"
            sentences.append(f"{share} of {name} something happened to a lane; the first: {first.lane}: {first.text}.")
    return tuple(sentences)


def divergence_in_words(found: Divergence) -> str:
    """Where the two worlds differ first, and what each of them decided there."""
    return (
        f"round {found.round + 1}, after {counted(found.position, 'new token')}: "
        f"predicted {_decided(found.simulated)}, measured {_decided(found.measured)}."
    )


def _why(found: Divergence, dtype: str) -> str:
    if found.margin is None:
        return ""
    apart = f" The target's two best logits are {found.margin:.3f} apart there"
    if dtype == "bfloat16" and found.margin < _DOUBTFUL_MARGIN:
        return f"{apart}: a verification of several rows rounds otherwise than one row, and {dtype} decides by that."
    return f"{apart}."


def _divergence(found: Divergence) -> dict[str, Any]:
    return {
        "prompt_id": found.prompt,
        "round": found.round,
        "position": found.position,
        "margin": found.margin,
        "text": divergence_in_words(found),
    }


def _decided(entry: Round | None) -> str:
    if entry is None:
        return "no further round"
    next_token = entry.outcome[1]
    then = "the end" if next_token == NOT_COMMITTED else f"token {next_token}"
    branch = {None: "", True: " (hit)", False: " (miss)"}[entry.hit]
    return f"{entry.num_accepted} of {entry.num_drafted} accepted, then {then}{branch}"
