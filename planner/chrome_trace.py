"""Simulated and real traces as Chrome trace JSON, in the layout of torch.profiler; Perfetto opens it.

Each trace is a process and each lane a track in it; a lane whose transfers overlap has several tracks, so that slices
never cross. Rounds have a track of their own. Arrows lead from the draft's last step to the verification.
"""

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from costs.round_plan import DRAFT_WORK, TARGET_WORK
from decoding.errors import TraceError
from decoding.files import is_gzipped, replace_file
from decoding.trace import Round, Span, Trace, Work
from decoding.validation import errors_as

_Event = dict[str, Any]

ROUNDS_TRACK = 0
VERIFYING = (Work.VERIFY, Work.PREFIX)


def chrome_trace(traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return the JSON object for traces by display name; times are microseconds from the start of decoding."""
    events = [event for pid, (name, trace) in enumerate(traces.items(), 1) for event in _process(pid, name, trace)]
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": events}


def save_chrome_trace(traces: Mapping[str, Trace], path: Path) -> None:
    """Write `chrome_trace` as `write_json` does."""
    write_json(json.dumps(chrome_trace(traces), separators=(",", ":")), path)


def write_json(text: str, path: Path) -> None:
    """Write a trace's JSON atomically, compressed for a name in `.gz`; `TraceError` where it cannot be written."""
    content = text.encode()
    if is_gzipped(path):
        content = gzip.compress(content, mtime=0)
    with errors_as(TraceError, f"{path}: the trace cannot be written"):
        replace_file(path, content)


def _process(pid: int, name: str, trace: Trace) -> Iterator[_Event]:
    tracks = _tracks(trace.spans)
    title = name if name == trace.world else f"{name} ({trace.world})"
    yield _label(pid, "process_name", f"{title}: {trace.label}" if trace.label else title)
    yield _label(pid, "thread_name", "rounds", tid=ROUNDS_TRACK)
    for tid, (lane, spans) in enumerate(tracks, ROUNDS_TRACK + 1):
        yield _label(pid, "thread_name", lane, tid=tid)
        yield from (_slice(pid, tid, span) for span in spans)
    tids = {span: tid for tid, (_, spans) in enumerate(tracks, ROUNDS_TRACK + 1) for span in spans}
    yield from _rounds(pid, trace.rounds)
    yield from _arrows(pid, trace.spans, tids)
    for event in trace.events:
        yield _event("i", pid, ROUNDS_TRACK, event.time_s, name=f"{event.lane}: {event.text}", s="p")


def _tracks(spans: list[Span]) -> list[tuple[str, list[Span]]]:
    """Return (name, spans in order) of every track, lanes by first use; a lane whose spans overlap has several."""
    tracks: dict[str, list[list[Span]]] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        slots = tracks.setdefault(span.lane, [])
        free = next((slot for slot in slots if _ns(slot[-1].end_s) <= _ns(span.start_s)), None)
        if free is None:
            slots.append([span])
        else:
            free.append(span)
    found: list[tuple[str, list[Span]]] = []
    for lane, slots in tracks.items():
        works = {span.work for slot in slots for span in slot}
        roles = ["target"] * bool(works & TARGET_WORK) + ["draft"] * bool(works & DRAFT_WORK)
        name = f"{lane} · {' and '.join(roles) or 'messages'}"
        found += [(name + f" ({index})" * (index > 1), slot) for index, slot in enumerate(slots, 1)]
    return found


def _slice(pid: int, tid: int, span: Span) -> _Event:
    category = "transfer" if span.work is Work.TRANSFER else "draft" if span.work in DRAFT_WORK else "target"
    args = {"round": span.round, "rows": span.rows}
    length = _microseconds(span.start_s, span.end_s)
    return _event("X", pid, tid, span.start_s, dur=length, name=span.work.value, cat=category, args=args)


def _rounds(pid: int, rounds: list[Round]) -> Iterator[_Event]:
    committed = 0
    for index, entry in enumerate(rounds):
        outcome = {None: "", True: ", hit", False: ", miss"}[entry.hit]
        name = f"round {index}: {entry.num_accepted} of {entry.num_drafted} accepted{outcome}"
        args = {"committed": entry.num_committed, "next_token": entry.outcome[1], "hit": entry.hit}
        length = _microseconds(entry.start_s, entry.end_s)
        yield _event("X", pid, ROUNDS_TRACK, entry.start_s, dur=length, name=name, cat="round", args=args)
        committed += entry.num_committed
        yield _event("C", pid, ROUNDS_TRACK, entry.end_s, name="committed tokens", args={"tokens": committed})


def _arrows(pid: int, spans: list[Span], tids: Mapping[Span, int]) -> Iterator[_Event]:
    """Yield an arrow to each verification from the last draft step before it; no step has two arrows."""
    drafted = sorted((span for span in spans if span.work in DRAFT_WORK), key=lambda span: span.end_s)
    verified = sorted((span for span in spans if span.work in VERIFYING), key=lambda span: span.start_s)
    num_seen = 0
    for arrow, span in enumerate(verified):
        num_ended = bisect_right(drafted, _ns(span.start_s), key=lambda step: _ns(step.end_s))
        if num_ended > num_seen:
            num_seen, step = num_ended, drafted[num_ended - 1]
            common = {"name": "window", "cat": "window", "id": f"{pid}.{arrow}"}
            # Perfetto attaches an arrow to the slice that encloses its time, so it starts where the step starts.
            yield _event("s", pid, tids[step], step.start_s, **common)
            yield _event("f", pid, tids[span], span.start_s, bp="e", **common)


def _label(pid: int, kind: str, name: str, *, tid: int = ROUNDS_TRACK) -> _Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _event(phase: str, pid: int, tid: int, time_s: float, **fields: Any) -> _Event:
    return {"ph": phase, "pid": pid, "tid": tid, "ts": _microseconds(0, time_s), **fields}


def _microseconds(start_s: float, end_s: float) -> float:
    """Return a duration in microseconds, from times rounded to nanoseconds so that adjacent spans stay adjacent."""
    return (_ns(end_s) - _ns(start_s)) / 1000


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)
