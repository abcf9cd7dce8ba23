"""The same schedules over the same prompts in both worlds: runs them for real in turn, simulates, and compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from calibrate.validate import Comparison, TracePair, compare
from decoding.errors import RecordError
from decoding.progress import ReportProgress
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from planner.report.report_data import ScheduleResult
from planner.search.search import Candidate, rank
from sim.world import simulate

if TYPE_CHECKING:
    from calibrate.prompts import EncodedPrompt
    from runtime.engine import Engine

_WARM_UP_TOKENS = 4


class Measured(NamedTuple):
    """What real runs gave.

    Attributes:
        num_prompts: prompts that every schedule has answered.
        traces: for each schedule one trace per prompt.
    """

    num_prompts: int
    traces: list[list[Trace]]


def run_in_turn(
    engine: Engine,
    schedules: Sequence[Schedule],
    prompts: Sequence[EncodedPrompt],
    *,
    max_new_tokens: int,
    enough: Callable[[int], bool] = lambda _num_prompts: False,
    between: Callable[[], None] = lambda: None,
    progress: ReportProgress = lambda _step, _share: None,
) -> Measured:
    """Run every schedule on every prompt, prompt by prompt, so that changes of the machine's speed hit all alike.

    The order of the schedules rotates from prompt to prompt. Before the first one each runs once unmeasured.
    `enough` is asked with the number of prompts done, at least one, whether to leave the others out; `between` is
    called before every prompt and after the last, while no schedule runs.
    """
    traces: list[list[Trace]] = [[] for _ in schedules]
    for schedule in schedules:
        progress("warming up", 0.0)
        engine.generate(schedule, prompts[0].ids, max_new_tokens=_WARM_UP_TOKENS)
    for place, prompt in enumerate(prompts):
        if place > 0 and enough(place):
            break
        between()
        for turn in range(len(schedules)):
            index = (place + turn) % len(schedules)
            step = f"prompt {place + 1} of {len(prompts)}, schedule {turn + 1} of {len(schedules)}"
            progress(step, (place + turn / len(schedules)) / len(prompts))
            made = engine.generate(schedules[index], prompt.ids, max_new_tokens=max_new_tokens)
            traces[index].append(made.trace)
    between()
    return Measured(len(traces[0]), traces)


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


def compare_all(results: Sequence[ScheduleResult], names: Sequence[str], record: AcceptanceRecord) -> list[Comparison]:
    """Rounds and times of every schedule, with the target's margins from the record."""
    margins = {prompt.name: prompt.margins.tolist() for prompt in record.prompts}
    return [compare(name, _pairs(result, record), margins) for result, name in zip(results, names, strict=True)]


def matching_prompts(prompts: Sequence[EncodedPrompt], record: AcceptanceRecord) -> tuple[EncodedPrompt, ...]:
    """The prompts of the record, in its order.

    Raises:
        RecordError: one is not among `prompts`, or has another length now.
    """
    known = {prompt.name: prompt for prompt in prompts}
    for entry in record.prompts:
        if entry.name not in known:
            msg = f"the record's prompt {entry.name!r} is not among the {len(known)} prompts given"
            raise RecordError(msg)
        found = len(known[entry.name].ids)
        if found != entry.prompt_length:
            msg = f"prompt {entry.name!r} has {found} tokens, but was recorded with {entry.prompt_length}"
            raise RecordError(msg)
    return tuple(known[entry.name] for entry in record.prompts)


def _pairs(result: ScheduleResult, record: AcceptanceRecord) -> list[TracePair]:
    (measured,) = result.measured
    return [
        TracePair(prompt=prompt.name, simulated=ours, measured=theirs)
        for prompt, ours, theirs in zip(record.prompts, result.simulated, measured, strict=False)
    ]
