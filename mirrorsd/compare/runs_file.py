"""Real runs on disk as compressed JSON: texts, and their anchors. Traces have a file of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from calibrate.profiling.run_anchors import RunAnchors
from decoding.errors import TraceError
from decoding.files import read_compressed
from decoding.trace import Trace
from decoding.validation import Many, told
from mirrorsd.compare.runs import Measured, Run
from mirrorsd.compare.trace_file import MAX_BYTES, WITHOUT_STATE
from planner.chrome_trace import write_json


class _Entry(BaseModel):
    """A `Run` without the trace that counts; `decode_s` is that trace's, for whoever reads the file alone."""

    tokens: Many[int]
    at_s: float
    decode_s: float
    anchors: RunAnchors
    given_up: Trace | None


class _Content(BaseModel):
    """What such a file holds; runs are a list per schedule."""

    format: Literal["mirrorsd-runs-2"]
    runs: Many[Many[_Entry]]


def save_runs(measured: Measured, path: Path) -> None:
    """Write runs atomically, without the traces that count.

    Raises:
        TraceError: the file cannot be written.
    """
    runs = tuple(tuple(_entry(run) for run in row) for row in measured.runs)
    content = _Content(format="mirrorsd-runs-2", runs=runs)
    write_json(content.model_dump_json(exclude={"runs": {"__all__": {"__all__": {"given_up": WITHOUT_STATE}}}}), path)


def load_runs(path: Path, traces: Sequence[Sequence[Trace]]) -> Measured:
    """Read what `save_runs` wrote, and put it together with its traces.

    Raises:
        TraceError: the file is missing, damaged, of other traces, or holds something else.
    """
    try:
        content = _Content.model_validate_json(read_compressed(path, MAX_BYTES))
        rows = [list(zip(*both, strict=True)) for both in zip(content.runs, traces, strict=True)]
    except (OSError, ValueError) as error:
        msg = f"{path}: not a readable file of runs ({told(error)})"
        raise TraceError(msg) from error
    return Measured(runs=tuple(tuple(_run(entry, trace) for entry, trace in row) for row in rows))


def _entry(run: Run) -> _Entry:
    return _Entry(
        tokens=run.tokens,
        at_s=run.at_s,
        decode_s=run.trace.decode_s,
        anchors=run.anchors,
        given_up=run.given_up,
    )


def _run(entry: _Entry, trace: Trace) -> Run:
    return Run(trace=trace, tokens=entry.tokens, at_s=entry.at_s, anchors=entry.anchors, given_up=entry.given_up)
