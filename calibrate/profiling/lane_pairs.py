"""What two lanes cost each other: both parts alone and side by side, in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from calibrate.fitting.noise import spread
from calibrate.profiling.time_budget import Passes
from calibrate.profiling.visits import visit
from hwprofiles.profile import Contention
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement

Pair = tuple[str, str]
"""(target's lane, draft's lane)."""

_VERIFY_RUNS = 2
_STEP_RUNS = 10
_TARGET_ROWS = 4
_DRAFT_ROWS = 8


def measure_pairs(
    lanes: Mapping[str, Lane],
    pairs: Sequence[Pair],
    *,
    context: int,
    max_rows: int,
    passes: Passes,
    source: str,
) -> tuple[Contention, ...]:
    """Slowdowns of every pair of lanes, pair after pair in every pass.

    Raises:
        LaneError: a lane is lost, or lacks a model.
    """
    verify = Measurement(part="verify", rows=min(_TARGET_ROWS, max_rows), context=context, repeats=_VERIFY_RUNS)
    step = Measurement(part="draft_step", rows=_DRAFT_ROWS, context=context, repeats=_STEP_RUNS)
    target: dict[Pair, list[float]] = {pair: [] for pair in pairs}
    draft: dict[Pair, list[float]] = {pair: [] for pair in pairs}
    for _ in passes:
        for pair in pairs:
            one, two = lanes[pair[0]], lanes[pair[1]]
            target[pair].append(_shared_over_alone(one, verify, two, step))
            draft[pair].append(_shared_over_alone(two, step, one, verify))
    return tuple(
        Contention(
            lanes=pair,
            slowdown=(median(target[pair]), median(draft[pair])),
            relative_error=spread([target[pair], draft[pair]]),
            source=source,
        )
        for pair in pairs
    )


def _shared_over_alone(lane: Lane, measurement: Measurement, other: Lane, load: Measurement) -> float:
    alone, _ = visit(lane, measurement)
    with other.busy(replace(load, repeats=1)):
        shared, _ = visit(lane, measurement)
    return median(shared) / median(alone)
