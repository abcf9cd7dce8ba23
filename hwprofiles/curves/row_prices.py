"""Prices rows by the nearest public curves, with the error of such prices.

Every curve of the same kind (dense or a mixture of experts; on a CPU or not) counts, weighted by how near it is:
device, architecture, back end, engine, kernels that read such weights, the model's size and the curve's age. Errors
were measured by leaving curves and devices out (`benchmarks/row_curves.py`, source-errors.yaml). Mixtures are priced
relative to the experts that rows touch in expectation.
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
"""How near the nearest curve is: of this device, engine, back end and such weights; of others of these two; of a
device of the same architecture, with that engine on that back end; of that engine anywhere; of other engines."""
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
"""How much less a curve counts that differs in one of these, as a power of e; chosen by leaving curves out."""
_OWN_KERNELS: Final = ("vllm",)
"""Engines whose rows others' say nothing of on cards of data centres: there they multiply by the makers' libraries, for
which one row costs as much as eight, where kernels that others wrote for one row read weights again. By curves of vLLM
alone, dense models left out are off by 8 % in nine of ten cases, by those of all engines by 32 % (up to eight rows, 24
points of four). On other cards it has kernels that do worse: 20 gains that were known were 9 % off, and 15 % so."""
_WEIGHT_KINDS: Final = {"codebook": 0, "low": 1, "four": 2, "fp4": 2.3, "eight": 3, "sixteen": 4}
"""Kernels that read weights, in the order of their bits."""
_FARTHER_PER_KIND = 1.5
_FARTHER_PER_SIZE, _FARTHER_PER_YEAR, _FARTHER_IF_DEEP = 1.5, 1.0, 0.5
_LEAST_LOG: Final = 0.2
"""Added to the logarithm of a ratio that errors are relative to: flat curves are not known perfectly."""
KERNEL_STARTS_S: Final = {"vllm": 7e-6, "mlx": 10e-6, "cuda": 5e-6, "vulkan": 3e-6, "rocm": 12e-6, "metal": 18e-6}
"""Seconds of every kernel besides reading, by engine or back end: those that predict passes over one row best on
devices that are left out (benchmarks/results/row-curves.json). Efficiencies are net of it: without it wide memories and
small models seem to be read slowly."""
USUAL_KERNEL_START_S: Final = 7e-6
"""Of all other engines: the best single number."""
STARTS_OF_MIXTURES: Final = {"vllm": 1.75}
"""How many times as long starts take in a mixture's layers, which also choose, sort and sum up experts: what predicts
one-row speeds best of devices that are left out, if barely (benchmarks/results/row-curves.json). With 2.5 three curves
of nine read at their whole bandwidth. Engines that fuse those kernels have no such cost."""
ERRORS_FILE: Final = Path(__file__).with_name("source-errors.yaml")
_USUAL_BILLIONS: Final = 8.0
_COLLECTED: Final = 2026.9
"""When the curves were collected; ages count from there."""


class StepErrors(StrictModel):
    """Errors of prices of one step.

    Attributes:
        rows: in nine of ten cases, as a share of the logarithm of the ratio (and 0.05).
        reading: the same of a dense model's pass over one row, relative.
        reading_of_mixtures: and of that of a mixture of experts.
    """

    rows: Annotated[float, Field(gt=0, le=10)]
    reading: Annotated[float, Field(gt=0, le=10)]
    reading_of_mixtures: Annotated[float, Field(gt=0, le=10)]


class Asked(NamedTuple):
    """The chip, engine and model to price, by `hwprofiles.curves.names`; `billions` of weights that a row reads."""

    device: str
    family: str
    engine: str
    backend: str
    weights: str
    billions: float
    is_mixture: bool

    @classmethod
    def of(cls, sheet: DeviceSheet, engine: str, weights: str, billions: float, *, is_mixture: bool) -> "Asked":
        """Return it by the names that people use of engines and weights."""
        backend = "cpu" if sheet.kind == "cpu" else backend_of(engine, sheet.chip)
        kernels = weights_class(weights) or "four"
        known = engine_of(engine) or engine
        family = family_of(sheet.chip, known, kernels) or ""
        return cls(sheet.chip, family, known, backend, kernels, billions, is_mixture)


@dataclass(frozen=True, slots=True)
class RowPrices:
    """What passes over rows take over the pass of one, apart from the experts that they touch.

    Attributes:
        rows, ratios: from one row on.
        errors: half-width at 90 % of each ratio, relative.
        step: how near the nearest curve is.
        source: of the curves that count most.
    """

    rows: tuple[int, ...]
    ratios: tuple[float, ...]
    errors: tuple[float, ...]
    step: Step
    source: str


class Reading(NamedTuple):
    """The share of its bandwidth at which a device reads, its half-width at 90 %, relative, and kernels' start."""

    efficiency: float
    error: float
    kernel_start_s: float
    step: Step
    source: str


@cache
def source_errors() -> dict[Step, StepErrors]:
    """Return the measured errors of every step."""
    return load_yaml(ERRORS_FILE, dict[Step, StepErrors])


def row_prices(asked: Asked, curves: Sequence[PublicCurve] | None = None) -> RowPrices | None:
    """Return what rows cost by the nearest curves; None where no curve is of such a device and model."""
    near = _of_own_kernels(asked, _nearest(asked, curves, lambda curve: len(curve.rows) > 1))
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
    """Return the efficiency of reading by the nearest curves that tell it; None where none does."""
    near = _nearest(asked, curves, lambda curve: curve.efficiency is not None)
    if not near:
        return None
    step = _step(asked, near)
    total = sum(weight for _, weight in near)
    value = exp(sum(weight * log(curve.efficiency or 1.0) for curve, weight in near) / total)
    question = "reading_of_mixtures" if asked.is_mixture else "reading"
    error = float(getattr(source_errors()[step], question)) if curves is None else 0.0
    return Reading(min(value, 1.0), error, kernel_start_s(asked), step, _told(near))


def kernel_start_s(of: Asked | PublicCurve) -> float:
    """Return what every kernel takes beside reading."""
    usual_s = KERNEL_STARTS_S.get(started_by(of), USUAL_KERNEL_START_S)
    return usual_s * STARTS_OF_MIXTURES.get(of.engine, 1.0) if of.is_mixture else usual_s


def started_by(of: Asked | PublicCurve) -> str:
    """Return what starts kernels: an engine of its own graphs, else the back end."""
    return of.engine if of.engine in KERNEL_STARTS_S else of.backend


def relative_log_error(found: float, predicted: float) -> float:
    """Return what a ratio is off by, in the units of `StepErrors.rows`."""
    return abs(log(found / predicted)) / (abs(log(predicted)) + _LEAST_LOG)


def _nearest(
    asked: Asked, curves: Sequence[PublicCurve] | None, counts: Callable[[PublicCurve], bool]
) -> list[tuple[PublicCurve, float]]:
    """Return the curves that count and their weights, the largest first."""
    found = [
        (one, exp(-_distance(asked, one)))
        for one in (read_curves() if curves is None else curves)
        if one.is_mixture == asked.is_mixture and (one.backend == "cpu") == (asked.backend == "cpu") and counts(one)
    ]
    return sorted(found, key=lambda pair: -pair[1])


def _of_own_kernels(asked: Asked, near: list[tuple[PublicCurve, float]]) -> list[tuple[PublicCurve, float]]:
    """Return the curves of an engine whose kernels there are like no other's, if it has several; else all of them."""
    own = [(curve, weight) for curve, weight in near if curve.engine == asked.engine]
    is_apart = asked.engine in _OWN_KERNELS and is_of_data_centre(asked.device)
    return own if is_apart and len(own) > 1 else near


def _distance(asked: Asked, curve: PublicCurve) -> float:
    differs = sum(far for name, far in _FARTHER.items() if getattr(asked, name) != getattr(curve, name))
    differs += _FARTHER_PER_KIND * abs(_WEIGHT_KINDS[asked.weights] - _WEIGHT_KINDS[curve.weights])
    size = abs(log((asked.billions or _USUAL_BILLIONS) / (curve.billions or _USUAL_BILLIONS)))
    year, *month = (float(part) for part in curve.date.split("-")[:2])
    age = max(0.0, _COLLECTED - (year + (month[0] / 12 if month else 0.5)))
    return differs + _FARTHER_PER_SIZE * size + _FARTHER_PER_YEAR * age + _FARTHER_IF_DEEP * curve.is_deep


def _step(asked: Asked, near: Sequence[tuple[PublicCurve, float]]) -> Step:
    """Return the nearest relation that any curve has."""
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
    """Name the curves that count most."""
    total = sum(weight for _, weight in near)
    most = [curve for curve, weight in near if weight / total > 0.1] or [near[0][0]]
    return "; ".join(
        f"{one.model} {one.stored} on {one.device}, {one.engine} {one.backend} ({one.source}, {one.date})"
        for one in most
    )
