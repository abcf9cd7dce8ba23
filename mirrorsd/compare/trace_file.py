"""Traces on disk as compressed JSON, so that a report can be made again without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from decoding.errors import TraceError
from decoding.files import read_compressed
from decoding.trace import Trace
from decoding.validation import Many, told
from planner.chrome_trace import write_json

MAX_BYTES: Final = 1 << 29
_LONGEST_S: Final = 1e7
"""No sequence takes months."""
WITHOUT_STATE: Final = {"_round_start_s"}
"""What a trace holds only while it is written."""


class _Content(BaseModel):
    """What such a file holds; traces are a list per schedule."""

    model_config = ConfigDict(allow_inf_nan=False)

    format: Literal["mirrorsd-traces-1"]
    traces: Many[Many[Trace]]


def save_traces(traces: Sequence[Sequence[Trace]], path: Path) -> None:
    """Write lists of traces, one list per schedule, atomically.

    Raises:
        TraceError: the file cannot be written.
    """
    content = _Content(format="mirrorsd-traces-1", traces=tuple(map(tuple, traces)))
    write_json(content.model_dump_json(exclude={"traces": {"__all__": {"__all__": WITHOUT_STATE}}}), path)


def load_traces(path: Path) -> list[list[Trace]]:
    """Read what `save_traces` wrote.

    Raises:
        TraceError: the file is missing, damaged, or holds something else.
    """
    try:
        content = _Content.model_validate_json(read_compressed(path, MAX_BYTES))
        traces = [list(row) for row in content.traces]
        _check([trace for row in traces for trace in row])
    except (OSError, ValueError) as error:
        msg = f"{path}: not a readable file of traces ({told(error)})"
        raise TraceError(msg) from error
    return traces


def _check(traces: Sequence[Trace]) -> None:
    """Refuse what no run can have written, with a `ValueError`."""
    for trace in traces:
        times = [0.0, *(time for entry in trace.rounds for time in (entry.start_s, entry.end_s)), trace.decode_s]
        if (
            not trace.rounds
            or times != sorted(times)
            or not 0 < trace.decode_s <= _LONGEST_S
            or (trace.prefill_s or 0.0) < 0
        ):
            msg = "rounds of a trace do not follow each other in time"
            raise ValueError(msg)
        if any(span.end_s < span.start_s or span.rows < 0 for span in trace.spans):
            msg = "a span of a trace ends before it starts"
            raise ValueError(msg)
        if any(not 0 <= entry.num_accepted <= entry.num_committed or not entry.num_committed for entry in trace.rounds):
            msg = "a round of a trace accepted more than it committed, or committed nothing"
            raise ValueError(msg)
