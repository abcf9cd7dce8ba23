"""Playing a schedule on a small machine, and what its trace looks like in plain tuples."""

from collections.abc import Iterable
from itertools import product

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile
from sim.world import simulate
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import prompt, record

HIT_MISS_END = record(prompt(draft="1010111", exit_="0100000", alternatives="0100000"))
"""With windows of two: one of two accepted and a hit, the same and a miss, and a last round with all accepted."""


def play(schedule: Schedule, profile: Profile, texts: AcceptanceRecord) -> Trace:
    [trace] = simulate(schedule, profile, texts)
    return trace


def spans(trace: Trace, *lanes: str) -> list[tuple[str, str, float, float, int]]:
    chosen = [span for span in trace.spans if not lanes or span.lane in lanes]
    chosen.sort(key=lambda span: (span.start_s, span.lane))
    return [(span.lane, span.work.value, span.start_s, span.end_s, span.rows) for span in chosen]


def rounds(trace: Trace) -> list[tuple[float, float]]:
    return [(entry.start_s, entry.end_s) for entry in trace.rounds]


def together_s(traces: Iterable[Trace], *lanes: str) -> float:
    """Return the time in which all these lanes compute."""
    total_s = 0.0
    for trace in traces:
        for pieces in product(*([span for span in trace.spans if span.lane == one] for one in lanes)):
            total_s += max(0.0, min(span.end_s for span in pieces) - max(span.start_s for span in pieces))
    return total_s


def drafting(trace: Trace) -> list[tuple[str, float, float, int]]:
    return [span[1:] for span in spans(trace, "draft")]


def with_draft_step(seconds: float, dispatch_s: float = 0.0) -> Profile:
    return machine(lane("target"), lane("draft", draft_step=seconds, dispatch_s=dispatch_s))


def by_rows(*seconds: float) -> LatencyTable:
    """So many seconds for 1, 2, .. rows; the last number for all above."""
    rows = (*range(1, len(seconds) + 1), 200)
    return LatencyTable(
        rows=rows, contexts=(0,), seconds=tuple((value,) for value in (*seconds, seconds[-1])), source="by hand"
    )
