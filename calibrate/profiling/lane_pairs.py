"""What two lanes cost each other: both parts alone, side by side, and alone again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from calibrate.fitting.levels import Level, Prior, shared_levels
from calibrate.fitting.ratios import Ratio
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.lane_parts import PAUSE_S
from calibrate.profiling.samples import Samples, Together
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.profile import Contention
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement

Pair = tuple[str, str]
"""(target's lane, draft's lane)."""

_VERIFY_RUNS = 2
_STEP_RUNS = 5
_TARGET_ROWS = 4
_DRAFT_ROWS = 8
_PRIOR: Final = Prior(spread=0.04)
"""Lanes that share no core slow each other a little, if at all: few comparisons seldom tell how much."""


def measure_pairs(
    lanes: Mapping[str, Lane], pairs: Sequence[Pair], anchors: Anchors, *, context: int, max_rows: int
) -> Iterator[Together]:
    """Every pair of lanes once, either lane alone and while the other works.

    Raises:
        LaneError: a lane is lost, or lacks a model.
    """
    verify = Measurement(part="verify", rows=min(_TARGET_ROWS, max_rows), context=context, repeats=_VERIFY_RUNS)
    step = Measurement(part="draft_step", rows=_DRAFT_ROWS, context=context, repeats=_STEP_RUNS)
    for pair in pairs:
        target, draft = pair
        yield Together(pair, "target", *_alone_and_shared(anchors, target, [verify], lanes[draft], step))
        # about every other step of branches is the first one after the target had the cache for itself
        steps = [step, replace(step, pause_s=PAUSE_S)]
        yield Together(pair, "draft", *_alone_and_shared(anchors, draft, steps, lanes[target], verify))


def contention_of(pair: Pair, samples: Samples, step_level: Level, source: str) -> Contention:
    """Slowdowns of a pair; the draft's relative to what its steps take in real runs (`step_level`).

    Both are shared by all pairs, unless those of one differ. A draft that finds its cache used by the target is slowed
    once, whether at the same time or after it. No lane is faster while the other works: what looks like it is noise,
    or in the level. What a level is off by is an error of its steps, and none of how much slower they are.
    """
    target, draft = (shared_levels(_by_pair(samples, role), _PRIOR)[pair] for role in ("target", "draft"))
    return Contention(
        lanes=pair,
        slowdown=(max(1.0, target.factor), max(1.0, draft.factor / step_level.factor)),
        relative_error=min(MOST_RELATIVE_ERROR, max(target.half_width, draft.half_width)),
        source=source,
    )


def _by_pair(samples: Samples, role: str) -> Mapping[Pair, Sequence[Ratio]]:
    found = defaultdict[Pair, list[Ratio]](list)
    for one in samples.together:
        if one.role == role:
            found[one.pair].append(one.slowdown)
    return found


def _alone_and_shared(
    anchors: Anchors, lane: str, shared: Sequence[Measurement], other: Lane, load: Measurement
) -> tuple[float, float, float]:
    """Mean seconds of the first of what is `shared` alone, of all while the other lane is busy, and alone again."""
    before_s = fmean(anchors.visit(lane, shared[0]))
    with other.busy(replace(load, repeats=1)):
        shared_s = fmean(seconds for one in shared for seconds in anchors.visit(lane, one))
    return before_s, shared_s, fmean(anchors.visit(lane, shared[0]))
