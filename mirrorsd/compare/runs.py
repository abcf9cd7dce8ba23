"""Real runs with their tokens, traces and anchors, stored as compressed JSON; and the machine's pace during a run.

The pace is the time of anchors during the run over their time by the profile: at 1.3 everything takes 1.3 times as
long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from calibrate.fitting.ratios import mean_pace
from calibrate.profiling.anchors import RunAnchors
from costs.prices import Prices
from decoding.errors import TraceError
from decoding.files import read_compressed
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Trace
from decoding.validation import Many, errors_as
from hwprofiles.profile import Profile
from planner.chrome_trace import write_json
from sim.prediction import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One prompt decoded by one schedule, with its anchors; `given_up` is an earlier attempt that was disturbed."""

    trace: Trace = field(repr=False)
    tokens: tuple[int, ...] = ()
    at_s: float = 0.0
    anchors: RunAnchors = field(default_factory=RunAnchors)
    given_up: Trace | None = field(default=None, repr=False)

    @property
    def events(self) -> Iterator[LaneEvent]:
        """The events of both attempts, such as the death of a lane."""
        for trace in (self.given_up, self.trace):
            yield from trace.events if trace is not None else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Real runs by schedule, each in the order of the prompts; a schedule may have run fewer prompts than others.

    `cuts` are the lengths to which recorded texts were cut; empty if they were not cut.
    """

    runs: tuple[tuple[Run, ...], ...] = field(repr=False)
    cuts: tuple[int, ...] = ()

    @property
    def num_prompts(self) -> int:
        """The number of prompts that were run by at least one schedule."""
        return max(map(len, self.runs))

    @property
    def traces(self) -> list[list[Trace]]:
        """The traces of all runs, without attempts that were given up: a list per schedule, one trace per prompt."""
        return [[run.trace for run in row] for row in self.runs]

    def texts(self, record: AcceptanceRecord) -> AcceptanceRecord:
        """Return the record of the prompts that were run, with their texts cut to what was run."""
        prompts = record.prompts[: self.num_prompts]
        if self.cuts:
            prompts = tuple(prompt.cut(cut) for prompt, cut in zip(prompts, self.cuts, strict=False))
        return replace(record, prompts=prompts)


_MAX_BYTES: Final = 1 << 29
_WITHOUT_STATE: Final = {"_round_start_s"}
"""Fields of a trace that are used only while it is recorded."""


class _Traces(BaseModel):
    """A file of traces, a list per schedule."""

    model_config = ConfigDict(allow_inf_nan=False)

    format: Literal["mirrorsd-traces-1"]
    traces: Many[Many[Trace]]


class _Entry(BaseModel):
    """A `Run` without its trace, which is in another file; `decode_s` repeats the trace's, for readers of this file."""

    tokens: Many[int]
    at_s: float
    decode_s: float
    anchors: RunAnchors
    given_up: Trace | None


class _Runs(BaseModel):
    """A file of runs, a list per schedule."""

    format: Literal["mirrorsd-runs-2"]
    runs: Many[Many[_Entry]]
    cuts: Many[Annotated[int, Field(ge=1)]] = ()


def save_traces(traces: Sequence[Sequence[Trace]], path: Path) -> None:
    """Write traces (a list per schedule) atomically; `TraceError` if the file cannot be written."""
    content = _Traces(format="mirrorsd-traces-1", traces=tuple(map(tuple, traces)))
    write_json(content.model_dump_json(exclude={"traces": {"__all__": {"__all__": _WITHOUT_STATE}}}), path)


def load_traces(path: Path) -> list[list[Trace]]:
    """Return what `save_traces` wrote; `TraceError` if the file is missing, damaged, or something else."""
    with errors_as(TraceError, f"{path}: not a readable file of traces"):
        content = _Traces.model_validate_json(read_compressed(path, _MAX_BYTES))
    return [list(row) for row in content.traces]


def save_runs(measured: Measured, path: Path) -> None:
    """Write runs atomically, without their traces; `TraceError` if the file cannot be written."""
    runs = tuple(tuple(_entry(run) for run in row) for row in measured.runs)
    content = _Runs(format="mirrorsd-runs-2", runs=runs, cuts=measured.cuts)
    write_json(content.model_dump_json(exclude={"runs": {"__all__": {"__all__": {"given_up": _WITHOUT_STATE}}}}), path)


def load_runs(path: Path, traces: Sequence[Sequence[Trace]]) -> Measured:
    """Read what `save_runs` wrote, and add its traces; `TraceError` if it is damaged, or does not match the traces."""
    with errors_as(TraceError, f"{path}: not a readable file of runs"):
        content = _Runs.model_validate_json(read_compressed(path, _MAX_BYTES))
        rows = [list(zip(*both, strict=True)) for both in zip(content.runs, traces, strict=True)]
    return Measured(runs=tuple(tuple(_run(entry, trace) for entry, trace in row) for row in rows), cuts=content.cuts)


def _entry(run: Run) -> _Entry:
    own = {name: getattr(run, name) for name in ("tokens", "at_s", "anchors", "given_up")}
    return _Entry(decode_s=run.trace.decode_s, **own)


def _run(entry: _Entry, trace: Trace) -> Run:
    return Run(trace=trace, tokens=entry.tokens, at_s=entry.at_s, anchors=entry.anchors, given_up=entry.given_up)


LEAST_CONTEXT = 64
"""Cached tokens of anchors on lanes whose calibration (by an earlier version) had none."""


def anchor_context(profile: Profile) -> int:
    """Return the number of cached tokens that anchors were calibrated with."""
    return next((lane.anchor.context for lane in profile.lanes if lane.anchor is not None), LEAST_CONTEXT)


def expected_anchors(profile: Profile) -> dict[str, float]:
    """Return the seconds of an anchor by the profile, on every lane that can run a target, at `anchor_context`."""
    context, prices, found = anchor_context(profile), Prices(profile), {}
    for lane in profile.lanes:
        if lane.anchor is not None and lane.anchor.context == context:
            found[lane.name] = lane.anchor.seconds
        elif lane.layer is not None:
            found[lane.name] = prices.pass_s(lane.name, 1, context)
    return found


def pace(run: Run, schedule: Schedule, prediction: Prediction, profile: Profile) -> float:
    """Return the machine's pace during a run, a mean over its lanes weighted by the time waited for each; 1 if unknown.

    While both lanes work at once (`overlap_s`), the pace is that of anchors that ran on both at once, if there are any.
    """
    target, draft = schedule.target_lane, schedule.draft_lane or schedule.target_lane
    alone, expected = run.anchors.alone, expected_anchors(profile)
    slowdown = profile.anchor_slowdown(target, draft)
    target_s, overlap_s, at_once = prediction.target_busy_s, 0.0, None
    if run.anchors.shared and slowdown is not None:
        overlap_s = min(prediction.hidden_draft_s, prediction.target_busy_s)
        target_s -= overlap_s
        at_once = _pace([of_target for of_target, _ in run.anchors.shared], expected[target] * slowdown[0])
    parts = [
        (_pace(alone.get(target, ()), expected[target]), target_s),
        (_pace(alone.get(draft, ()), expected[draft]), prediction.exposed_draft_s),
        (at_once, overlap_s),
    ]
    known = [(one, weight) for one, weight in parts if one is not None]
    total = sum(weight for _, weight in known)
    return sum(one * weight for one, weight in known) / total if total else 1.0


def _pace(taken: Sequence[float], expected_s: float) -> float | None:
    return mean_pace(taken) / expected_s if taken else None
