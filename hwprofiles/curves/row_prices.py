"""Predicts the cost of further rows, and the reading efficiency, from the nearest public curves, with errors.

All curves of the same kind (dense or mixture of experts; CPU or not) are averaged. Their weights depend on similarity:
device, architecture, back end, engine, class of weights, model size and age. Errors were measured by leaving curves and
devices out (`benchmarks/row_curves.py`, source-errors.yaml). Mixtures are averaged after dividing by the expected
growth of the experts read (`PublicCurve.expert_factor`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, get_args

from pydantic import Field

from decoding.yaml_file import StrictModel, load_yaml
from hwprofiles.curves.names import backend_of, engine_of, family_of, is_of_data_centre, weights_class
from hwprofiles.curves.row_curves import PublicCurve, read_curves
from hwprofiles.sheets import DeviceSheet

Step = Literal["device", "device otherwise", "family", "engine", "others"]
"""How near the nearest curve is, nearest first: same device, engine, back end and class of weights; same device and
engine; same architecture, engine and back end; same engine; none of these."""
STEPS: Final[tuple[Step, ...]] = get_args(Step)
STEP_IN_WORDS: Final[dict[Step, str]] = {
    "device": "this device, engine and such weights",
    "device otherwise": "this device and engine with other weights or another back end",
    "family": "this engine on a device of the same architecture",
    "engine": "this engine on other devices",
    "others": "other engines",
}
GRID: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32)
_FARTHER: Final = {"device": 1.0, "family": 2.5, "backend": 2.0, "engine": 3.0}
"""Distance of a curve that differs in this respect; its weight is exp(-distance). Chosen by leaving curves out."""
_OWN_KERNELS: Final = ("vllm",)
"""Engines whose rows on data-centre GPUs are predicted from their own curves only. There vLLM uses the makers' matrix
libraries, for which eight rows cost as much as one, while other engines' one-row kernels read the weights again for
further rows. Predicting left-out dense models (up to eight rows, 24 points of four models) from vLLM's curves alone is
within 8 % in nine of ten cases, from all engines' within 32 %. On other GPUs all curves do better: 20 known gains were
9 % off, against 15 % with vLLM's alone."""
_WEIGHT_KINDS: Final = {"codebook": 0, "low": 1, "four": 2, "fp4": 2.3, "eight": 3, "sixteen": 4}
"""Position of each class of weights, ordered by bits; distances grow with the difference (`_FARTHER_PER_KIND`)."""
_FARTHER_PER_KIND = 1.5
_FARTHER_PER_SIZE, _FARTHER_PER_YEAR, _FARTHER_IF_DEEP, _FARTHER_IF_DENSE = 1.5, 1.0, 0.5, 1.0
_LEAST_LOG: Final = 0.2
"""Added to the logarithm of a ratio that errors are relative to, so that flat curves have an error too."""
KERNEL_STARTS_S: Final = {"vllm": 7e-6, "mlx": 10e-6, "cuda": 5e-6, "vulkan": 3e-6, "rocm": 12e-6, "metal": 18e-6}
"""Seconds that starting one kernel takes, by engine or back end: the values that predict one-row passes of left-out
devices best (benchmarks/results/row-curves.json). Reading efficiencies exclude these starts; else fast memories and
small models would seem to read slowly."""
USUAL_KERNEL_START_S: Final = 7e-6
"""Kernel start of all other engines: the best single number."""


class StartsOfMixtures(NamedTuple):
    """Factor on the kernels' starts in a mixture's layers, and what is added to it if all have linear attention."""

    factor: float = 1.0
    of_linear: float = 0.0

    def at(self, linear_share: float) -> float:
        """Return the factor for a mixture whose layers have linear attention in this share."""
        return self.factor + linear_share * self.of_linear


AS_DENSE: Final = StartsOfMixtures()
"""The factors of engines whose mixtures start no more kernels than dense models."""
STARTS_OF_MIXTURES: Final = {
    "vllm": StartsOfMixtures(1.75),
    **dict.fromkeys(("llama.cpp", "ik_llama.cpp"), StartsOfMixtures(2.0, 2.75)),
}
"""Mixtures' layers also choose, sort and sum up experts, and linear attention takes many small steps. Of vLLM this is
the value that predicts one-row speeds of left-out devices best, if barely; with 2.5, three of its nine curves would
read at the full bandwidth. llama.cpp's were fitted on eleven devices; twelve speeds on three others are 11 % off in the
median (benchmarks/results/row-curves.json has what other values are off by). Engines without an entry fuse these
kernels. Dense models have the steps of linear attention in their efficiencies, since their reading takes far longer."""
READ_AS_DENSE: Final = ("llama.cpp", "ik_llama.cpp")
"""Engines whose mixtures read their weights like dense models once starts are counted: dense curves tell it then, and
those of mixtures on the device itself. Mixtures on other devices are left out: what the factors of starts get wrong
there would count as reading here. On Metal, where no factor stands up, mixtures tell how mixtures read."""
ERRORS_FILE: Final = Path(__file__).with_name("source-errors.yaml")
_USUAL_BILLIONS: Final = 8.0
_COLLECTED: Final = 2026.9
"""Year in which the curves were collected; ages count from it."""


class StepErrors(StrictModel):
    """Errors (half-widths, 90 %) of predictions whose nearest curve is of one `Step`.

    Attributes:
        rows: error of a ratio, in the units of `relative_log_error`.
        reading: relative error of a dense model's pass over one row.
        reading_of_mixtures: relative error of a mixture's pass over one row.
    """

    rows: Annotated[float, Field(gt=0, le=10)]
    reading: Annotated[float, Field(gt=0, le=10)]
    reading_of_mixtures: Annotated[float, Field(gt=0, le=10)]


class Asked(NamedTuple):
    """The chip, engine and model to predict, as keys of `hwprofiles.curves.names`.

    `billions`: of weights that one row reads.
    """

    device: str
    family: str
    engine: str
    backend: str
    weights: str
    billions: float
    is_mixture: bool

    @classmethod
    def of(cls, sheet: DeviceSheet, engine: str, weights: str, billions: float, *, is_mixture: bool) -> "Asked":
        """Return the question for a data sheet, and for an engine and weights under any of their names."""
        backend = "cpu" if sheet.kind == "cpu" else backend_of(engine, sheet.chip)
        kernels = weights_class(weights) or "four"
        known = engine_of(engine) or engine
        family = family_of(sheet.chip, known, kernels) or ""
        return cls(sheet.chip, family, known, backend, kernels, billions, is_mixture)


@dataclass(frozen=True, slots=True)
class RowPrices:
    """Predicted times of passes over several rows relative to one row, without the growth of the experts read.

    Attributes:
        rows, ratios: numbers of rows, starting at 1, and relative times.
        errors: relative half-width (90 %) of each ratio.
        step: how near the nearest curve is.
        source: the curves with the largest weights.
    """

    rows: tuple[int, ...]
    ratios: tuple[float, ...]
    errors: tuple[float, ...]
    step: Step
    source: str


class Reading(NamedTuple):
    """Predicted share of its bandwidth at which a device reads weights, and the start of each kernel.

    `error`: relative half-width (90 %) of a pass over one row. `starts`: factors on the starts of a mixture's kernels.
    """

    efficiency: float
    error: float
    kernel_start_s: float
    starts: StartsOfMixtures
    step: Step
    source: str


@cache
def source_errors() -> dict[Step, StepErrors]:
    """Return the measured errors of each step."""
    return load_yaml(ERRORS_FILE, dict[Step, StepErrors])


def row_prices(asked: Asked, curves: Sequence[PublicCurve] | None = None) -> RowPrices | None:
    """Return the relative cost of rows by the nearest `curves` (None: all); None if there is no curve of the same kind.

    Errors are given only for all curves.
    """
    near = _nearest(asked, curves, lambda one: one.is_mixture == asked.is_mixture and len(one.rows) > 1)
    near = _of_own_kernels(asked, near)
    if not near:
        return None
    step = _step(asked, near)
    logs = [0.0]
    unsure = [0.0]
    for low, high in pairwise(GRID):
        known = [(weight, curve) for curve, weight in near if curve.rows[-1] >= high]
        if not known:
            break
        total = sum(weight for weight, _ in known)
        rises = [(weight / total, _log_ratio(curve, high) - _log_ratio(curve, low)) for weight, curve in known]
        logs.append(logs[-1] + sum(weight * rise for weight, rise in rises))
        unmeasured = sum(weight / total for weight, curve in known if high not in curve.rows)
        unsure.append(unmeasured * abs(logs[-1] - logs[-2]) / 2)
    share = source_errors()[step].rows if curves is None else 0.0
    return RowPrices(
        rows=GRID[: len(logs)],
        ratios=tuple(map(exp, logs)),
        errors=tuple(
            share * (abs(value) + _LEAST_LOG) + more if rows > 1 else 0.0
            for rows, value, more in zip(GRID, logs, unsure, strict=False)
        ),
        step=step,
        source=_told(near),
    )


def reading(asked: Asked, curves: Sequence[PublicCurve] | None = None) -> Reading | None:
    """Return the reading efficiency by the nearest `curves` (None: all) that tell it; None if none does."""
    near = _nearest(asked, curves, lambda one: one.efficiency is not None and _reads_alike(asked, one))
    if not near:
        return None
    step = _step(asked, near)
    total = sum(weight for _, weight in near)
    value = exp(sum(weight * log(curve.efficiency or 1.0) for curve, weight in near) / total)
    error = 0.0
    if curves is None:
        errors = source_errors()[step]
        error = errors.reading_of_mixtures if asked.is_mixture else errors.reading
    starts = starts_of_mixtures(asked)
    return Reading(min(value, 1.0), error, kernel_start_s(asked), starts, step, _told(near))


def kernel_start_s(of: Asked | PublicCurve) -> float:
    """Return the seconds that starting one kernel takes in a dense model."""
    return KERNEL_STARTS_S.get(started_by(of), USUAL_KERNEL_START_S)


def starts_of_mixtures(of: Asked | PublicCurve) -> StartsOfMixtures:
    """Return the factors of an engine on its back end.

    None stands up on Metal, whose dense starts are long: an M1 Max would have twice as many, an M5 Max no more.
    """
    return AS_DENSE if of.backend == "metal" else STARTS_OF_MIXTURES.get(of.engine, AS_DENSE)


def started_by(of: Asked | PublicCurve) -> str:
    """Return the key of `KERNEL_STARTS_S`: the engine if it has an entry, else the back end."""
    return of.engine if of.engine in KERNEL_STARTS_S else of.backend


def relative_log_error(found: float, predicted: float) -> float:
    """Return the error of a predicted ratio as a share of |log(predicted)| + `_LEAST_LOG`."""
    return abs(log(found / predicted)) / (abs(log(predicted)) + _LEAST_LOG)


def _nearest(
    asked: Asked, curves: Sequence[PublicCurve] | None, counts: Callable[[PublicCurve], bool]
) -> list[tuple[PublicCurve, float]]:
    """Return the curves that `counts` accepts, of CPUs or of others as asked, with their weights, largest first."""
    found = [
        (one, exp(-_distance(asked, one)))
        for one in (read_curves() if curves is None else curves)
        if (one.backend == "cpu") == (asked.backend == "cpu") and counts(one)
    ]
    return sorted(found, key=lambda pair: -pair[1])


def _reads_alike(asked: Asked, curve: PublicCurve) -> bool:
    """Return whether a curve's reading efficiency tells that of the asked model: see `READ_AS_DENSE`."""
    is_as_dense = asked.engine in READ_AS_DENSE and asked.backend not in ("cpu", "metal")
    if asked.is_mixture and is_as_dense:
        return not curve.is_mixture or (curve.engine in READ_AS_DENSE and curve.device == asked.device)
    return curve.is_mixture == asked.is_mixture


def _of_own_kernels(asked: Asked, near: list[tuple[PublicCurve, float]]) -> list[tuple[PublicCurve, float]]:
    """Return only the engine's own curves for `_OWN_KERNELS` on data-centre GPUs, if there are several; else `near`."""
    own = [(curve, weight) for curve, weight in near if curve.engine == asked.engine]
    is_apart = asked.engine in _OWN_KERNELS and is_of_data_centre(asked.device)
    return own if is_apart and len(own) > 1 else near


def _distance(asked: Asked, curve: PublicCurve) -> float:
    differs = sum(far for name, far in _FARTHER.items() if getattr(asked, name) != getattr(curve, name))
    differs += _FARTHER_PER_KIND * abs(_WEIGHT_KINDS[asked.weights] - _WEIGHT_KINDS[curve.weights])
    size = abs(log((asked.billions or _USUAL_BILLIONS) / (curve.billions or _USUAL_BILLIONS)))
    year, *month = (float(part) for part in curve.date.split("-")[:2])
    age = max(0.0, _COLLECTED - (year + (month[0] / 12 if month else 0.5)))
    if curve.is_mixture != asked.is_mixture:
        differs += _FARTHER_IF_DENSE
    return differs + _FARTHER_PER_SIZE * size + _FARTHER_PER_YEAR * age + _FARTHER_IF_DEEP * curve.is_deep


def _step(asked: Asked, near: Sequence[tuple[PublicCurve, float]]) -> Step:
    """Return the nearest step that any of the curves has."""
    found = {_relation(asked, curve) for curve, _ in near}
    return next(step for step in STEPS if step in found)


def _relation(asked: Asked, curve: PublicCurve) -> Step:
    if curve.engine != asked.engine:
        return "others"
    if curve.device == asked.device:
        return "device" if (curve.backend, curve.weights) == (asked.backend, asked.weights) else "device otherwise"
    is_kin = curve.family == asked.family != "" and curve.backend == asked.backend
    return "family" if is_kin else "engine"


def _log_ratio(curve: PublicCurve, rows: int) -> float:
    found = curve.ratio(rows)
    assert found is not None, "asked within its rows"
    return log(found / curve.expert_factor(rows))


def _told(near: Sequence[tuple[PublicCurve, float]]) -> str:
    """Name the curves with more than a tenth of the total weight."""
    total = sum(weight for _, weight in near)
    most = [curve for curve, weight in near if weight / total > 0.1] or [near[0][0]]
    return "; ".join(
        f"{one.model} {one.stored} on {one.device}, {one.engine} {one.backend} ({one.source}, {one.date})"
        for one in most
    )
