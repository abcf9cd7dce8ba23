"""A profile of an engine from the curves of its target and its draft: for `search` and `simulate`, as calibrated ones.

An engine is one lane on which target and draft work in turn. A pass is timed whole: all layers are one,
or equal where a shape says how many there are. What
llama.cpp's loop does beyond is charged as its source has it (`draft-simple` in common/speculative.cpp): after a
verification of several rows the draft reads all of them, so that its next step reads one.

Rows of several sequences stand for those of a window: what they read besides, a cache each, is small while contexts are
short, and all of them have logits, as rows of a window have and those of a prompt (llama-bench) have not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from decoding.errors import ProfileError
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.model_shape import ModelShape
from hwprofiles.profile import Profile
from planner.imported.bench_curve import BenchCurve, CurveOf

LANE: Final = "engine"
_NOTE: Final = "Imported from an engine's own benchmark; what its loop takes beyond passes is not in it."
_FEW_LOGITS: Final = "Rows of a prompt: of llama-bench only the last one has logits, of a verification all have."
_READS_AGAIN: Final = ("llama.cpp",)
"""Engines whose draft reads every verified row once more."""
Grid = dict[int, dict[int, float]]
"""Seconds by rows and context."""


class Timed(NamedTuple):
    """What `plan` calls the models that an engine timed, as far as that is said: shapes, and a form of weights."""

    target: ModelShape | None = None
    draft: ModelShape | None = None
    weights: str | None = None


def engine_profile(curves: Sequence[BenchCurve], timed: Timed = Timed()) -> Profile:  # noqa: B008 (it is immutable)
    """Return the profile of the curves of one or two models, the slower one being the target.

    Raises:
        ProfileError: there are more models, or settings, or a model has no pass over one row.
    """
    models = defaultdict[str, list[BenchCurve]](list)
    for curve in curves:
        models[curve.of.model].append(curve)
    if not 1 <= len(models) <= 2:
        found = ", ".join(models) or "none"
        raise ProfileError(f"a profile is of a target, or of a target and its draft; there are curves of {found}")
    grids = {model: _grid(model, own) for model, own in models.items()}
    target, *others = sorted(grids, key=lambda model: -min(grids[model][1].values()))
    draft = others[0] if others else None
    of, num_layers = models[target][0].of, 1 if timed.target is None else timed.target.num_layers
    lane = _lane(of, grids[target], None if draft is None else grids[draft], _sources(curves))
    times = [time for own in models.values() for curve in own for time in curve.times.values()]
    return Profile(
        host={"device": of.device, "engine": of.engine},
        target=target if timed.target is None else timed.target.name,
        drafter=draft if timed.draft is None or draft is None else timed.draft.name,
        dtype=timed.weights or "bf16",
        num_layers=num_layers,
        lanes=(lane.scaled({"layer": 1 / num_layers}),),
        relative_error=max((time.high - time.low) / 2 / time.time_s for time in times),
        notes=(_NOTE, *([_FEW_LOGITS] if models[target][0].of.how == "one sequence" else [])),
    )


def _lane(of: CurveOf, target: Grid, draft: Grid | None, source: str) -> LaneProfile:
    nothing = {rows: dict.fromkeys(times, 0.0) for rows, times in target.items()}
    head, step = nothing, None
    if draft is not None:
        step = dict.fromkeys((1, 2), draft[1])
        if of.engine in _READS_AGAIN:
            shared = {rows: draft[rows] for rows in target if rows > 1 and rows in draft}
            head = {1: dict.fromkeys(draft[1], 0.0)} | shared
    return LaneProfile(
        name=LANE,
        device=of.device,
        dispatch_s=0.0,
        layer=_table(target, source),
        lm_head=_table(head, source),
        draft_step=None if step is None else _table(step, source),
    )


def _grid(model: str, curves: Sequence[BenchCurve]) -> Grid:
    """Return the times of a model by rows and context, of the rows that were timed in every context."""
    if len({curve.of._replace(context=0) for curve in curves}) > 1:
        told = "; ".join(dict.fromkeys(f"{one.of.engine}, {one.of.device}, {one.of.settings}" for one in curves))
        raise ProfileError(f"{model} was timed in several ways ({told}): import one of them")
    rows = set.intersection(*({*curve.times} for curve in curves))
    if 1 not in rows:
        raise ProfileError(f"{model} has no pass over one row in {_sources(curves)}; llama-bench -n 32 times it")
    return {one: {curve.of.context: curve.times[one].time_s for curve in curves} for one in sorted(rows)}


def _table(grid: Grid, source: str) -> LatencyTable:
    contexts = sorted(grid[1])
    seconds = tuple(tuple(times[context] for context in contexts) for times in grid.values())
    return LatencyTable(rows=tuple(grid), contexts=tuple(contexts), seconds=seconds, source=source)


def _sources(curves: Sequence[BenchCurve]) -> str:
    return ", ".join(dict.fromkeys(curve.source for curve in curves))
