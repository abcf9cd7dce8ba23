"""A profile of an engine from the curves of its target and its draft: for `search` and `simulate`, as calibrated ones.

An engine is one lane on which target and draft work in turn, and a pass is timed whole. Beyond that the draft of some
reads all rows of a verification once more (`hwprofiles.engines.READS_AGAIN`). Rows of several sequences stand for those
of a window: the cache that each reads is small while contexts are short.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple

from decoding.errors import ConfigError, ProfileError
from hwprofiles.engines import READS_AGAIN
from hwprofiles.lane_profile import LanePart, LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.machines.device_names import find_device
from hwprofiles.model_shape import ModelShape
from hwprofiles.models.head_shapes import LOOKUP
from hwprofiles.profile import Profile
from hwprofiles.sheets import DeviceKind, device_sheet
from hwprofiles.weights.formats import weights_in_name
from planner.wording import counted, milliseconds

_CPU: Final = re.compile(r"cpu|blas|blis|mkl|nvpl|processor|intel(?:\(r\))? core|xeon|epyc|ryzen|cortex|neoverse")
"""What is in the names of CPUs that engines tell; vLLM and SGLang tell none, and run on GPUs."""
How = Literal["one sequence", "several sequences"]
UNNAMED: Final = "the device"
"""What a device is called that a file does not name."""
MOST_ROWS: Final = 64
"""Longer prompts say nothing about verifications."""
_GROWING_ROWS: Final = 8
SERVED: Final = "through its server"
"""Settings of times over sampled prompts, whose mean length differs from run to run."""
_ALIKE: Final = 0.1
"""By how much, relative, it may."""
_ROUNDED: Final = 0.01
"""By which share sizes of one model may differ: tables have two decimals, of 1.00 at least."""
_PER_ROW: Final = 10.0
"""By which factor a pass may take longer than its rows one by one, or less than fewer rows: beyond it units differ."""
_ONE_MODEL: Final = 2.0
"""By which factor times of one pass may differ: a machine has slow moments, and a draft is faster than its target."""


class BenchTime(NamedTuple):
    """Seconds of a pass, and the 90 % interval of its repeats; three equal numbers where that is not known."""

    time_s: float
    low: float
    high: float

    @classmethod
    def of(cls, mean_s: float, deviation_s: float = 0.0) -> "BenchTime":
        """Return a mean with the interval that a standard deviation gives."""
        return cls(mean_s, max(0.0, mean_s - 1.645 * deviation_s), mean_s + 1.645 * deviation_s)


class CurveOf(NamedTuple):
    """What the times of one curve have in common.

    Attributes:
        engine, model, device: as the file names them.
        how: whether rows are of one sequence, as those of a verification, or of several, each with its own cache.
        context: cached tokens before them.
        settings: whatever else the file tells of how it was measured, and what it leaves out.
    """

    engine: str
    model: str
    device: str
    how: How
    context: int
    settings: str = ""


class ModelSize(NamedTuple):
    """What a file says of its model beside the name, which tells apart what is called alike; zeros where untold."""

    num_params: float = 0.0
    num_bytes: float = 0.0

    def is_alike(self, other: "ModelSize") -> bool:
        """Return whether two files may have rounded the sizes of one model."""
        return all(isclose(*both, rel_tol=_ROUNDED) for both in zip(self, other, strict=True))

    @property
    def in_words(self) -> str:
        """The sizes as parts of a name."""
        return f"{self.num_params / 1e9:.3g} B parameters, {self.num_bytes / 2**30:.3g} GiB"


class Sample(NamedTuple):
    """One time: of which curve, of how many rows, and whether it is of decoding, as of a prompt's tokens it is not."""

    curve: CurveOf
    rows: int
    time: BenchTime
    is_decoding: bool = True
    model_size: ModelSize = ModelSize()


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchCurve:
    """Times by rows of one model on one device, ascending; `source` is the files that they are from."""

    of: CurveOf
    times: Mapping[int, BenchTime]
    source: str

    def ratio(self, rows: int) -> float | None:
        """Return the time of `rows` rows over that of one; None where one row was not timed."""
        return self.times[rows].time_s / self.times[1].time_s if 1 in self.times else None

    @property
    def growth_per_row(self) -> tuple[float, float, float] | None:
        """Return how much each further row, up to eight, slows a pass: fitted, least, most; None without rows."""
        ratios = {rows: self.ratio(rows) for rows in self.times if 1 < rows <= _GROWING_ROWS}
        slopes = {rows: (ratio - 1) / (rows - 1) for rows, ratio in ratios.items() if ratio is not None}
        if not slopes:
            return None
        weights = {rows: (rows - 1) ** 2 for rows in slopes}
        fitted = sum(slope * weights[rows] for rows, slope in slopes.items()) / sum(weights.values())
        return fitted, min(slopes.values()), max(slopes.values())

    @property
    def entry(self) -> dict[str, Any]:
        """Return the curve as `mirrorsd curve --json` writes one."""
        growth = self.growth_per_row
        return {
            "target": self.of.model,
            "device": self.of.device,
            "engine": self.of.engine,
            "context": self.of.context,
            "how": self.of.how,
            "settings": self.of.settings,
            "source": self.source,
            "rows": [{"rows": rows, **time._asdict(), "ratio": self.ratio(rows)} for rows, time in self.times.items()],
            "growth_per_row": None if growth is None else dict(zip(("value", "low", "high"), growth, strict=True)),
        }


def curves_of(samples: Iterable[tuple[str, Sample]]) -> tuple[BenchCurve, ...]:
    """Return the curves of samples with their files, one a kind; one row is a step of plain decoding, if timed.

    Raises `ConfigError` where times of one kind and as many rows are too far apart to be of one model.
    """
    found, kinds = list(samples), defaultdict[CurveOf, list[tuple[str, Sample]]](list)
    sizes = defaultdict[str, list[ModelSize]](list)
    for _, sample in found:
        if not any(map(sample.model_size.is_alike, known := sizes[sample.curve.model])):
            known.append(sample.model_size)
    for source, sample in sorted(found, key=lambda one: one[1].curve.context * (one[1].curve.settings == SERVED)):
        of = sample.curve
        size = next(filter(sample.model_size.is_alike, sizes[of.model]))
        of = of._replace(model=f"{of.model} ({size.in_words})") if any(size) and len(sizes[of.model]) > 1 else of
        kinds[_kin(of, kinds)].append((source, sample))
    return tuple(_curve(of, own) for of, own in kinds.items())


def _kin(of: CurveOf, known: Iterable[CurveOf]) -> CurveOf:
    """Return the known curve that a time belongs to, or its own; of sampled prompts one of about as many tokens."""
    near = (one for one in known if abs(of.context - one.context) <= _ALIKE * one.context)
    return next((one for one in near if of.settings == SERVED and one == of._replace(context=one.context)), of)


def _curve(of: CurveOf, samples: list[tuple[str, Sample]]) -> BenchCurve:
    times = defaultdict[int, list[BenchTime]](list)
    has_plain = any(one.rows == 1 and one.is_decoding for _, one in samples)
    for _, one in samples:
        if one.rows > 1 or one.is_decoding or not has_plain:
            times[one.rows].append(one.time)
    source = ", ".join(dict.fromkeys(source for source, _ in samples))
    for rows, own in times.items():
        least, most = (function(one.time_s for one in own) for function in (min, max))
        if most > _ONE_MODEL * least:
            raise ConfigError(
                f"{source}: a pass over {counted(rows, 'row')} of {of.model} took {milliseconds(least)} and "
                f"{milliseconds(most)}, as if of two models: give each a file of its own"
            )
    means = {rows: BenchTime(*map(median, zip(*own, strict=True))) for rows, own in sorted(times.items())}
    for (few, less), (many, more) in pairwise(means.items()):
        if not 1 / _PER_ROW <= more.time_s / less.time_s <= _PER_ROW * many / few:
            raise ConfigError(
                f"{source}: passes of {of.model} over {counted(few, 'row')} and {counted(many, 'row')} took "
                f"{milliseconds(less.time_s)} and {milliseconds(more.time_s)}, as if in two units"
            )
    of = of._replace(context=round(fmean(one.curve.context for _, one in samples)))
    return BenchCurve(of=of, times=means, source=source)


def settings_apart(curves: Sequence[BenchCurve]) -> list[tuple[list[str], list[str]]]:
    """Return the settings of each curve: those that not all of the curves have, and the others."""
    every = [curve.of.settings.split(", ") for curve in curves]
    shared = {one for own in every for one in own if all(one in other for other in every)}
    return [([one for one in own if one not in shared], [one for one in own if one in shared]) for own in every]


LANE: Final = "engine"
_WEIGHTS: Final = "bf16"
_NOTE: Final = "Imported from an engine's own benchmark; its loop's time between passes is not included."
_FEW_LOGITS: Final = "Rows of a prompt: in llama-bench only the last one has logits, in a verification all have."
USUAL_NOTES: Final = (_NOTE, _FEW_LOGITS)
"""What is said in the profile alone."""
_TOO_DEAR: Final = "Verifications are judged too dear at long contexts: each of several sequences read its own cache."
_SHORT: Final = 4096
"""Cached tokens up to which these are small beside the weights."""
_OFF_BY: Final = 0.08
"""Of the time of one schedule, whose passes were timed: 7 draft lengths in two weight formats are off by 8.2 % at most
(benchmarks/results/llamacpp.json), up and down."""
_Grid = dict[int, dict[int, float]]
"""Seconds by rows and context."""


class Timed(NamedTuple):
    """The models that an engine timed, as `plan` calls them, where given: shapes, and weights if names do not tell."""

    target: ModelShape | None = None
    draft: ModelShape | None = None
    weights: str | None = None

    def weights_of(self, model: str, shape: ModelShape | None) -> str:
        """Return a model's format: told by its name in the file, or what is given, else as its makers publish it."""
        return weights_in_name(model) or self.weights or (_WEIGHTS if shape is None else shape.published_in)

    def pass_bytes(self, shape: ModelShape | None, model: str | None) -> float:
        """Return bytes of weights that a pass over one row of a model reads; 0 where its shape is not given."""
        if shape is None or model is None:
            return 0.0
        weights = self.weights_of(model, shape)
        return shape.num_layers * shape.layer_weight_bytes(weights) + shape.head_bytes(weights)


def engine_profile(curves: Sequence[BenchCurve], timed: Timed = Timed()) -> Profile:  # noqa: B008 (it is immutable)
    """Return the profile of the curves of one or two models, the slower one being the target; else `ProfileError`."""
    models = defaultdict[str, list[BenchCurve]](list)
    for curve in curves:
        models[curve.of.model].append(curve)
    if not 1 <= len(models) <= 2:
        found = ", ".join(models) or "none"
        raise ProfileError(f"a profile is of a target, or of a target and its draft; there are curves of {found}")
    if len(engines := {curve.of.engine for curve in curves}) > 1:
        raise ProfileError(f"a profile is of one engine; there are curves of {' and of '.join(sorted(engines))}")
    grids = {model: _grid(model, own) for model, own in models.items()}
    target, *others = sorted(grids, key=lambda model: -min(grids[model][1].values()))
    draft = others[0] if others else None
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
    if (found := find_device(label)) is not None:
        return device_sheet(found.sheet).kind
    # a build may list several back ends: of "Metal,BLAS" the first one computes what its GPU holds
    return "cpu" if _CPU.search(label.lower().split(",")[0]) else "gpu"


def _steps(draft: _Grid, *, reads_again: bool) -> _Grid:
    """Return the times of a draft's steps, of which that after a whole window has two rows.

    It has one where all that was verified is read apart; and where no other was timed, nothing else is known.
    """
    has_one = reads_again or max(draft) == 1
    return dict(sorted((draft | ({2: draft[1]} if has_one else {})).items()))


def _grid(model: str, curves: Sequence[BenchCurve]) -> _Grid:
    """Return the times of a model by rows and context, of the rows that were timed in every context."""
    if len({curve.of._replace(context=0) for curve in curves}) > 1:
        ways = zip(curves, settings_apart(curves), strict=True)
        told = "; ".join(dict.fromkeys(", ".join((one.of.device, one.of.how, *own)) for one, (own, _) in ways))
        raise ProfileError(f"{model} was timed in several ways ({told}): import one of them")
    rows = set.intersection(*({*curve.times} for curve in curves))
    if 1 not in rows:
        told = f"{model} has no pass over one row in {_sources(curves)}"
        raise ProfileError(f"{told}; time one too, as llama-bench -n 32 does")
    return {one: {curve.of.context: curve.times[one].time_s for curve in curves} for one in sorted(rows)}


def _left_out(model: str, curves: Sequence[BenchCurve], grid: _Grid) -> str | None:
    """Say which rows of a model were not timed in every context, so that they are no part of its grid."""
    rows = sorted({one for curve in curves for one in curve.times} - grid.keys())
    where = "they were not timed in every context"
    return f"Left out of {model}: passes over {', '.join(map(str, rows))} rows, since {where}." if rows else None


def _too_long(draft: str, grid: _Grid, most_rows: int) -> str | None:
    """Say which drafts are not predicted, since the draft reads verified rows again and was not timed with so many."""
    most = max(grid)
    why = f"since {draft} reads verified rows again: time these with llama-bench -p 1,2,3,4,5,6,8,12,16"
    return f"Left out: drafts of {most} or more tokens, {why}." if most < most_rows else None


def _table(grid: _Grid, source: str) -> LatencyTable:
    contexts = sorted(grid[1])
    seconds = tuple(tuple(times[context] for context in contexts) for times in grid.values())
    return LatencyTable(rows=tuple(grid), contexts=tuple(contexts), seconds=seconds, source=source)


def _sources(curves: Sequence[BenchCurve]) -> str:
    return ", ".join(dict.fromkeys(curve.source for curve in curves))
