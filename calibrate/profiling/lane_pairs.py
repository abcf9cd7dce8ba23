"""What two lanes cost each other: both parts alone, side by side, and alone again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, hypot, inf, log, log1p
from statistics import fmean

from calibrate.fitting.levels import Level
from calibrate.fitting.ratios import estimate
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.samples import Samples, Together
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.profile import Contention
from runtime.lanes.lane import Lane
from runtime.wire.measurement import Measurement

Pair = tuple[str, str]
"""(target's lane, draft's lane)."""

_VERIFY_RUNS = 2
_STEP_RUNS = 10
_TARGET_ROWS = 4
_DRAFT_ROWS = 8
_LEAST = 3
"""Fewer comparisons of two lanes are no evidence of a gain."""


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
        yield Together(pair, "target", *_alone_and_shared(anchors, target, verify, lanes[draft], step))
        yield Together(pair, "draft", *_alone_and_shared(anchors, draft, step, lanes[target], verify))


def contention_of(pair: Pair, samples: Samples, step_level: Level, source: str) -> Contention:
    """Slowdowns of a pair; the draft's relative to what its steps take in real runs (`step_level`).

    A draft that finds its cache used by the target is slowed once, whether at the same time or after it. No lane is
    taken to be faster while the other works unless its interval leaves no other choice: that of the draft is as wide
    as its level's too. What a level is off by is an error of its steps, and none of how much slower they are.
    """
    found = {
        role: estimate([one.slowdown for one in samples.together if one.pair == pair and one.role == role])
        for role in ("target", "draft")
    }
    widths = [one.log_half_width for one in found.values()]
    target, draft = (
        _no_gain_without_evidence(
            one.value / level.factor, hypot(width, log1p(level.half_width)) if one.num >= _LEAST else inf
        )
        for one, level, width in zip(found.values(), (Level(), step_level), widths, strict=True)
    )
    error = min(MOST_RELATIVE_ERROR, exp(max(widths)) - 1)
    return Contention(lanes=pair, slowdown=(target, draft), relative_error=error, source=source)


def _no_gain_without_evidence(slowdown: float, log_half_width: float) -> float:
    return slowdown if log(slowdown) + log_half_width < 0 else max(1.0, slowdown)


def _alone_and_shared(
    anchors: Anchors, lane: str, measurement: Measurement, other: Lane, load: Measurement
) -> tuple[float, float, float]:
    before = anchors.visit(lane, measurement)
    with other.busy(replace(load, repeats=1)):
        shared = anchors.visit(lane, measurement)
    return fmean(before), fmean(shared), fmean(anchors.visit(lane, measurement))
