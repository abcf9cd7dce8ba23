"""What would have to change for another kind of decoding to be the fastest, and what limits mirror speculation."""

from __future__ import annotations

from collections.abc import Iterator

from decoding.record import AcceptanceRecord
from planner.kinds import KINDS, Kind
from planner.upper_bounds import OverlapBound
from planner.what_if.break_even import BreakEven
from planner.what_if.mixed_record import whose_tokens
from planner.what_if.sensitivity import Sensitivity, Sweep
from planner.wording import capital, factor, listing, milliseconds, percent


def changes(sensitivity: Sensitivity, record: AcceptanceRecord, bound: OverlapBound | None) -> Iterator[str]:
    """Sentences; kinds without a break-even are not mentioned."""
    for challenger in dict.fromkeys(kind for sweep in sensitivity.sweeps for kind in sweep.break_evens):
        yield _break_even(challenger, sensitivity, record)
    gains = [f"the {part} {percent(gain)}" for part, gain in sensitivity.gains.items()]
    if gains:
        yield f"One part made ten percent faster would bring this many more tokens per second: {listing(gains)}."
    if bound is not None:
        limit = factor(bound.over_synchronous)
        yield (
            "On the lanes of its best schedule, mirror speculation can be at most "
            f"{limit} as fast as drafting and verifying in turn."
        )
        if bound.memory_floor_s is not None:
            floor = milliseconds(bound.memory_floor_s)
            yield f"The shared memory alone needs {floor} per token of mirror speculation."


def _break_even(challenger: Kind, sensitivity: Sensitivity, record: AcceptanceRecord) -> str:
    ifs = [
        _acceptance(sweep, found, record) if sweep.quantity == "acceptance" else _draft_speed(found)
        for sweep in sensitivity.sweeps
        if (found := sweep.break_evens.get(challenger)) is not None
    ]
    return f"{capital(KINDS[challenger])} would be the fastest if {', or if '.join(ifs)}."


def _acceptance(sweep: Sweep, found: BreakEven, record: AcceptanceRecord) -> str:
    often = "more often" if found.at > sweep.now else "less often"
    within = f" ({percent(found.low)} to {percent(found.high)})" if found.low < found.high else ""
    tokens = whose_tokens(record)
    num_drafters = (record.drafter is not None) + len(record.trees) + len(record.chains)
    others = ", and all other drafted tokens by the same share" if num_drafters > 1 else ""
    return f"{tokens} were accepted {often}: {percent(found.at)}{within} of them, not {percent(sweep.now)}{others}"


def _draft_speed(found: BreakEven) -> str:
    is_faster = found.at > 1
    at, *ends = (value if is_faster else 1 / value for value in (found.at, found.low, found.high))
    within = f" ({factor(min(ends))} to {factor(max(ends))})" if found.low < found.high else ""
    return f"drafting were {factor(at)}{within} {'faster' if is_faster else 'slower'}"
