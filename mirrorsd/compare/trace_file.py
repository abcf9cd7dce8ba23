"""Traces on disk as compressed JSON, so that a report can be made again without running anything."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel

from decoding.errors import TraceError
from decoding.trace import Trace
from planner.chrome_trace import write_json

_MOST_CHARACTERS = 300
WITHOUT_STATE: Final = {"_round_start_s"}
"""What a trace holds only while it is written."""


class _Content(BaseModel):
    """What such a file holds; traces are a list per schedule."""

    format: Literal["mirrorsd-traces-1"]
    traces: Sequence[Sequence[Trace]]


def save_traces(traces: Sequence[Sequence[Trace]], path: Path) -> None:
    """Write lists of traces, one list per schedule, atomically.

    Raises:
        TraceError: the file cannot be written.
    """
    content = _Content(format="mirrorsd-traces-1", traces=traces)
    write_json(content.model_dump_json(exclude={"traces": {"__all__": {"__all__": WITHOUT_STATE}}}), path)


def load_traces(path: Path) -> list[list[Trace]]:
    """Read what `save_traces` wrote.

    Raises:
        TraceError: the file is missing, damaged, or holds something else.
    """
    try:
        content = _Content.model_validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        msg = f"{path}: not a readable file of traces ({str(error)[:_MOST_CHARACTERS]})"
        raise TraceError(msg) from error
    return [list(row) for row in content.traces]
