"""Real runs on disk as compressed JSON, so that a report can be made again: traces, and texts with their anchors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from calibrate.profiling.anchors import RunAnchors
from decoding.errors import TraceError
from decoding.files import read_compressed
from decoding.trace import Trace
from decoding.validation import Many, told
from mirrorsd.compare.runs import Measured, Run
from planner.chrome_trace import write_json

_MAX_BYTES: Final = 1 << 29
_LONGEST_S: Final = 1e7
"""No sequence takes months."""
_WITHOUT_STATE: Final = {"_round_start_s"}
"""What a trace holds only while it is written."""


class _Traces(BaseModel):
    """A file of traces, a list per schedule."""

    model_config = ConfigDict(allow_inf_nan=False)

    format: Literal["mirrorsd-traces-1"]
    traces: Many[Many[Trace]]


class _Entry(BaseModel):
    """A `Run` without the trace that counts; `decode_s` is that trace's, for whoever reads the file alone."""

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
    """Write lists of traces, one list per schedule, atomically.

    Raises:
        TraceError: the file cannot be written.
    """
    content = _Traces(format="mirrorsd-traces-1", traces=tuple(map(tuple, traces)))
    write_json(content.model_dump_json(exclude={"traces": {"__all__": {"__all__": _WITHOUT_STATE}}}), path)


def load_traces(path: Path) -> list[list[Trace]]:
    """Read what `save_traces` wrote.

    Raises:
        TraceError: the file is missing, damaged, or holds something else.
    """
    try:
        content = _Traces.model_validate_json(read_compressed(path, _MAX_BYTES))
        _check([trace for row in content.traces for trace in row])
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: not a readable file of traces ({told(error)})") from error
    return [list(row) for row in content.traces]


def save_runs(measured: Measured, path: Path) -> None:
    """Write runs atomically, without the traces that count.

    Raises:
        TraceError: the file cannot be written.
    """
    runs = tuple(tuple(_entry(run) for run in row) for row in measured.runs)
    content = _Runs(format="mirrorsd-runs-2", runs=runs, cuts=measured.cuts)
    write_json(content.model_dump_json(exclude={"runs": {"__all__": {"__all__": {"given_up": _WITHOUT_STATE}}}}), path)


def load_runs(path: Path, traces: Sequence[Sequence[Trace]]) -> Measured:
    """Read what `save_runs` wrote, and put it together with its traces.

    Raises:
        TraceError: the file is missing, damaged, of other traces, or holds something else.
    """
    try:
        content = _Runs.model_validate_json(read_compressed(path, _MAX_BYTES))
        rows = [list(zip(*both, strict=True)) for both in zip(content.runs, traces, strict=True)]
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: not a readable file of runs ({told(error)})") from error
    return Measured(runs=tuple(tuple(_run(entry, trace) for entry, trace in row) for row in rows), cuts=content.cuts)


def _entry(run: Run) -> _Entry:
    own = {name: getattr(run, name) for name in ("tokens", "at_s", "anchors", "given_up")}
    return _Entry(decode_s=run.trace.decode_s, **own)


def _run(entry: _Entry, trace: Trace) -> Run:
    return Run(trace=trace, tokens=entry.tokens, at_s=entry.at_s, anchors=entry.anchors, given_up=entry.given_up)


def _check(traces: Sequence[Trace]) -> None:
    """Refuse what no run can have written, with a `ValueError`."""
    for trace in traces:
        times = [0.0, *(time for entry in trace.rounds for time in (entry.start_s, entry.end_s)), trace.decode_s]
        is_long = not 0 < trace.decode_s <= _LONGEST_S
        if not trace.rounds or times != sorted(times) or is_long or (trace.prefill_s or 0.0) < 0:
            raise ValueError("rounds of a trace do not follow each other in time")
        if any(span.end_s < span.start_s or span.rows < 0 for span in trace.spans):
            raise ValueError("a span of a trace ends before it starts")
        if any(not 0 <= entry.num_accepted <= entry.num_committed or not entry.num_committed for entry in trace.rounds):
            raise ValueError("a round of a trace accepted more than it committed, or committed nothing")
