"""The same schedules over the same prompts in both worlds: simulates what was run, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from calibrate.validate import Comparison, TracePair, compare
from decoding.errors import RecordError
from decoding.record import AcceptanceRecord
from decoding.recorded.prompt_record import hash_of_ids
from hwprofiles.profile import Profile
from mirrorsd.compare.pace import pace
from mirrorsd.compare.runs import Measured, Run
from planner.report.report_data import ScheduleResult
from planner.search.search import Candidate, rank
from sim.world import simulate

if TYPE_CHECKING:
    from calibrate.prompts import EncodedPrompt


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
            measured=(tuple(traces),),
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


def matching_prompts(prompts: Sequence[EncodedPrompt], record: AcceptanceRecord) -> tuple[EncodedPrompt, ...]:
    """Return the prompts of the record, in its order.

    Raises:
        RecordError: one is not among `prompts`, or has other tokens now. Records from before they had hashes of their
            prompts tell that by the length alone.
    """
    known = {prompt.name: prompt for prompt in prompts}
    for entry in record.prompts:
        if entry.name not in known:
            msg = f"the record's prompt {entry.name!r} is not among the {len(known)} prompts given"
            raise RecordError(msg)
        ids = known[entry.name].ids
        if len(ids) != entry.prompt_length:
            msg = f"prompt {entry.name!r} has {len(ids)} tokens, but was recorded with {entry.prompt_length}"
            raise RecordError(msg)
        if entry.prompt_hash not in (None, hash_of_ids(ids)):
            why = "its text, the chat template or the tokenizer has changed"
            msg = f"prompt {entry.name!r} was recorded with other tokens: {why}"
            raise RecordError(msg)
    return tuple(known[entry.name] for entry in record.prompts)


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
