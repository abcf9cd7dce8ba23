"""Builds a profile of an engine from measured row curves of its target and its draft, for `search` and `simulate`.

An engine is one lane on which target and draft work in turn; passes are timed as a whole. In some engines the draft
also reads all rows of a verification again (`hwprofiles.engines.READS_AGAIN`). Rows of several sequences stand in for
the rows of one window: while contexts are short, the cache that each sequence reads hardly counts.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from math import isclose
from typing import Final, NamedTuple

from decoding.errors import ProfileError
from hwprofiles.engines import READS_AGAIN
from hwprofiles.lane_profile import LanePart, LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.machines.device_names import find_device
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models
from hwprofiles.models.head_shapes import LOOKUP
from hwprofiles.models.model_names import named_shape
from hwprofiles.profile import Profile
from hwprofiles.sheets import DeviceKind, device_sheet
from hwprofiles.weights.formats import weights_in_name
from planner.imported.bench_curves import UNNAMED, BenchCurve, CurveOf, settings_apart

_CPU: Final = re.compile(r"cpu|blas|blis|mkl|nvpl|processor|intel(?:\(r\))? core|xeon|epyc|ryzen|cortex|neoverse")
"""Parts of the names by which engines report CPUs; vLLM and SGLang report no device, and run on GPUs."""
LANE: Final = "engine"
_NOTE: Final = "Imported from an engine's own benchmark; the engine's time between passes is not included."
_FEW_LOGITS: Final = (
    "Times are of prompts: llama-bench computes logits only for the last row, but a verification needs them for all."
)
USUAL_NOTES: Final = (_NOTE, _FEW_LOGITS)
"""Notes that are in the profile but not printed."""
_TOO_DEAR: Final = (
    "Verifications at long contexts are overestimated: rows were timed as several sequences, each with its own cache."
)
_SHORT: Final = 4096
"""Up to this many cached tokens, reading the cache takes little time compared with reading the weights."""
_OFF_BY: Final = 0.08
"""Relative error of one schedule's time, given times of its passes: 7 draft lengths in two weight formats are off by
8.2 % at most, up and down (benchmarks/results/llamacpp.json)."""
_WEIGHTS: Final = "bf16"
_ALIKE: Final = 0.1
"""Relative difference of the numbers of parameters up to which two names may mean one model."""
_Grid = dict[int, dict[int, float]]
"""Seconds by rows and context."""


class Timed(NamedTuple):
    """What the user says about the timed models: their shapes, and the weight format if their names do not state it."""

    target: ModelShape | None = None
    draft: ModelShape | None = None
    weights: str | None = None

    def weights_of(self, model: str, shape: ModelShape | None) -> str:
        """Return a model's weight format: by its name in the file, else as given, else as it is published."""
        return weights_in_name(model) or self.weights or (_WEIGHTS if shape is None else shape.published_in)

    def pass_bytes(self, shape: ModelShape | None, model: str | None) -> float:
        """Return the bytes of weights that a pass over one row reads; 0 where the shape is not given."""
        if shape is None or model is None:
            return 0.0
        return shape.pass_bytes(self.weights_of(model, shape))

    def require(self, target: str, draft: str | None) -> None:
        """Raise `ProfileError` if a given model was not timed, or if the name of a timed one means another model."""
        if self.draft is not None and draft is None:
            raise ProfileError(f"{target} alone was timed: a benchmark of {self.draft.name} is needed too")
        for model, shape in ((target, self.target), (draft, self.draft)):
            named = None if model is None else named_shape(model, shipped_models())
            if named is None or shape is None:
                continue
            known = model_shape(named.shape)
            if not isclose(known.num_parameters, shape.num_parameters, rel_tol=_ALIKE):
                raise ProfileError(f"{model} was timed, which is {known.name}, and not {shape.name}")


def engine_profile(curves: Sequence[BenchCurve], timed: Timed = Timed()) -> Profile:  # noqa: B008 (it is immutable)
    """Return the profile of the curves of one or two models on one engine; the slower model is the target.

    Raises `ProfileError` for other numbers of models or engines, or if a model was not timed with one row.
    """
    models = defaultdict[str, list[BenchCurve]](list)
    for curve in curves:
        models[curve.of.model].append(curve)
    if not 1 <= len(models) <= 2:
        found = ", ".join(models) or "none"
        raise ProfileError(f"a profile is of a target, or of a target and its draft, but the curves are of {found}")
    engines = {curve.of.engine for curve in curves}
    if len(engines) > 1:
        raise ProfileError(f"a profile is of one engine, but the curves are of {' and '.join(sorted(engines))}")
    grids = {model: _grid(model, own) for model, own in models.items()}
    target, *others = sorted(grids, key=lambda model: -min(grids[model][1].values()))
    draft = others[0] if others else None
    timed.require(target, draft)
    device = next((curve.of.device for curve in curves if curve.of.device != UNNAMED), UNNAMED)
    of, num_layers = models[target][0].of, 1 if timed.target is None else timed.target.num_layers
    of = of._replace(device=device)
    lane = _lane(of, grids[target], None if draft is None else grids[draft], _sources(curves))
    lane = lane.scaled({"layer": 1 / num_layers})
    read: dict[LanePart, float] = {
        "layer": timed.pass_bytes(timed.target, target) / num_layers,
        "draft_step": timed.pass_bytes(timed.draft, draft),
    }
    times = [time for own in models.values() for curve in own for time in curve.times.values()]
    left_out = [_left_out(model, own, grids[model]) for model, own in models.items()]
    if draft is not None and lane.draft_reads is not None:
        left_out.append(_too_long(draft, grids[draft], max(grids[target])))
    return Profile(
        host={"device": of.device, "engine": of.engine},
        target=target if timed.target is None else timed.target.name,
        drafter=draft if timed.draft is None or draft is None else timed.draft.name,
        dtype=timed.weights_of(target, timed.target),
        draft_dtype=None if draft is None else timed.weights_of(draft, timed.draft),
        num_layers=num_layers,
        lanes=(lane.changed(read, LatencyTable.reading),),
        relative_error=max((time.high - time.low) / 2 / time.time_s for time in times),
        schedule_error=_OFF_BY,
        notes=(
            _NOTE,
            *([_FEW_LOGITS] if of.how == "one sequence" else []),
            *([_TOO_DEAR] if of.how == "several sequences" and max(grids[target][1]) > _SHORT else []),
            *filter(None, left_out),
        ),
    )


def _lane(of: CurveOf, target: _Grid, draft: _Grid | None, source: str) -> LaneProfile:
    nothing = {rows: dict.fromkeys(times, 0.0) for rows, times in target.items()}
    again = draft if of.engine in READS_AGAIN else None
    return LaneProfile(
        name=LANE,
        device=of.device,
        kind=_kind(of.device),
        dispatch_s=0.0,
        layer=_table(target, source),
        lm_head=_table(nothing, source),
        draft_step=None if draft is None else _table(_steps(draft, reads_again=again is not None), source),
        draft_reads=None if again is None else _table(again, source),
        heads={LOOKUP: _table(nothing, source)},
    )


def _kind(label: str) -> DeviceKind:
    """Return the kind of the device that an engine says it ran on."""
    found = find_device(label)
    if found is not None:
        return device_sheet(found.sheet).kind
    # A build may list several back ends, as in "Metal,BLAS"; the first one runs the model.
    return "cpu" if _CPU.search(label.lower().split(",")[0]) else "gpu"


def _steps(draft: _Grid, *, reads_again: bool) -> _Grid:
    """Return the times of a draft's steps. The first step after a fully accepted window has two rows.

    It costs as much as one row if the draft reads the verified rows again anyway, or if only one row was timed.
    """
    steps = draft | {2: draft[1]} if reads_again or max(draft) == 1 else draft
    return dict(sorted(steps.items()))


def _grid(model: str, curves: Sequence[BenchCurve]) -> _Grid:
    """Return the times of a model by rows and context, for all rows that were timed at every context."""
    if len({curve.of._replace(context=0) for curve in curves}) > 1:
        ways = zip(curves, settings_apart(curves), strict=True)
        told = "; ".join(dict.fromkeys(", ".join((one.of.device, one.of.how, *own)) for one, (own, _) in ways))
        raise ProfileError(f"{model} was timed in several ways ({told}): import one of them")
    rows = set.intersection(*({*curve.times} for curve in curves))
    if 1 not in rows:
        told = f"{model} has no pass over one row in {_sources(curves)}"
        raise ProfileError(f"{told}: time that too, for example with llama-bench -n 32")
    return {one: {curve.of.context: curve.times[one].time_s for curve in curves} for one in sorted(rows)}


def _left_out(model: str, curves: Sequence[BenchCurve], grid: _Grid) -> str | None:
    """Say which rows of a model are left out since they were not timed at every context; None if there are none."""
    rows = sorted({one for curve in curves for one in curve.times} - grid.keys())
    where = "they were not timed at every context"
    return f"Left out of {model}: passes over {', '.join(map(str, rows))} rows, since {where}." if rows else None


def _too_long(draft: str, grid: _Grid, most_rows: int) -> str | None:
    """Say which drafts are too long to predict, since the draft was not timed with as many rows as it reads again."""
    most = max(grid)
    why = f"since {draft} reads verified rows again: time more rows, with llama-bench -p 1,2,3,4,5,6,8,12,16"
    return f"Left out: drafts of {most} or more tokens, {why}." if most < most_rows else None


def _table(grid: _Grid, source: str) -> LatencyTable:
    contexts = sorted(grid[1])
    seconds = tuple(tuple(times[context] for context in contexts) for times in grid.values())
    return LatencyTable(rows=tuple(grid), contexts=tuple(contexts), seconds=seconds, source=source)


def _sources(curves: Sequence[BenchCurve]) -> str:
    return ", ".join(dict.fromkeys(curve.source for curve in curves))
