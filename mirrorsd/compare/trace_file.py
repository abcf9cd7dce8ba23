"""Traces on disk as compressed JSON, so that a report can be made again without running anything."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from decoding.errors import TraceError
from decoding.files import replace_file
from decoding.trace import LaneEvent, Round, Span, Trace, Work

_FORMAT: Final = "mirrorsd-traces-1"


def save_traces(traces: Sequence[Sequence[Trace]], path: Path) -> None:
    """Write lists of traces, one list per schedule, atomically.

    Raises:
        TraceError: the file cannot be written.
    """
    content = {"format": _FORMAT, "traces": [[_plain(trace) for trace in row] for row in traces]}
    try:
        replace_file(path, gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    except OSError as error:
        msg = f"{path}: cannot be written ({error})"
        raise TraceError(msg) from error


def load_traces(path: Path) -> list[list[Trace]]:
    """Read what `save_traces` wrote.

    Raises:
        TraceError: the file is missing, damaged, or holds something else.
    """
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if content["format"] != _FORMAT:
            msg = f"{path}: format is {content['format']!r}, expected {_FORMAT!r}"
            raise TraceError(msg)
        return [[_trace(fields) for fields in row] for row in content["traces"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        msg = f"{path}: not a readable file of traces ({error!r})"
        raise TraceError(msg) from error


def _plain(trace: Trace) -> dict[str, Any]:
    return {
        "world": trace.world,
        "spans": trace.spans,
        "rounds": trace.rounds,
        "events": trace.events,
        "prefill_s": trace.prefill_s,
        "decode_s": trace.decode_s,
    }


def _trace(fields: dict[str, Any]) -> Trace:
    return Trace(
        world=fields["world"],
        spans=[Span(lane, Work(work), *rest) for lane, work, *rest in fields["spans"]],
        rounds=[Round(*row)._replace(outcome=tuple(row[5])) for row in fields["rounds"]],
        events=[LaneEvent(*row) for row in fields["events"]],
        prefill_s=fields["prefill_s"],
        decode_s=fields["decode_s"],
    )
