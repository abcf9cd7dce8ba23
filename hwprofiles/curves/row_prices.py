"""What rows cost by the public curves that are nearest to a question, and how much such an answer may be off by.

Every curve of the same kind (dense or a mixture of experts; on a CPU or not) has a say, by how near it is: the device,
its architecture, the back end, the engine, the kernels that read such weights, the model's size and the curve's age.
What a step away costs was measured by leaving curves and devices out (`benchmarks/row_curves.py`, source-errors.yaml).
Mixtures are priced relative to the experts that rows touch in expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, RootModel

from decoding.yaml_file import load_yaml
from hwprofiles.curves.asked import NOW, WEIGHT_KINDS, Asked, Step, told_by
from hwprofiles.curves.row_curves import PublicCurve, read_curves

GRID: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32)
_FARTHER: Final = {"device": 1.0, "family": 1.5, "backend": 2.0, "engine": 3.0}
"""How much less a curve says that differs in one of these, as a power of e: what leaving curves out likes best."""
_FARTHER_PER_KIND = 1.5
_FARTHER_PER_SIZE, _FARTHER_PER_YEAR, _FARTHER_IF_DEEP = 1.5, 1.0, 0.5
_LEAST_LOG: Final = 0.2
"""Added to the logarithm of a ratio whose error is told relative to it: flat curves are not known perfectly."""
ERRORS_FILE: Final = Path(__file__).with_name("source-errors.yaml")
_USUAL_BILLIONS: Final = 8.0


class _Errors(RootModel[dict[Step, Annotated[float, Field(gt=0, le=10)]]]):
    """Of all steps."""


@dataclass(frozen=True, slots=True)
class RowPrices:
    """What passes over rows take over the pass of one, apart from the experts that they touch.

    Attributes:
        rows, ratios: from one row on.
        errors: half-width at 90 % of each ratio, relative.
        step: how near the nearest curve is.
        source: of the curves that say most.
    """

    rows: tuple[int, ...]
    ratios: tuple[float, ...]
    errors: tuple[float, ...]
    step: Step
    source: str


@cache
def source_errors() -> dict[Step, float]:
    """Return what nine of ten answers of every step were off by at most, as shares of a logarithm and `_LEAST_LOG`."""
    return load_yaml(ERRORS_FILE, _Errors).root


def row_prices(asked: Asked, curves: Sequence[PublicCurve] | None = None) -> RowPrices | None:
    """Return what rows cost by the nearest curves; None where no curve is of such a device and model."""
    near = _nearest(asked, read_curves() if curves is None else curves)
    if not near:
        return None
    step = asked.step([curve for curve, _ in near])
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
    share = source_errors()[step] if curves is None else 0.0
    return RowPrices(
        rows=GRID[: len(logs)],
        ratios=tuple(map(exp, logs)),
        errors=tuple(
            share * (abs(value) + _LEAST_LOG) + more if rows > 1 else 0.0
            for rows, value, more in zip(GRID, logs, unsure, strict=False)
        ),
        step=step,
        source=told_by(*zip(*near, strict=True)),
    )


def relative_log_error(found: float, predicted: float) -> float:
    """Return what a ratio is off by, in the units of `source_errors`."""
    return abs(log(found / predicted)) / (abs(log(predicted)) + _LEAST_LOG)


def _nearest(asked: Asked, curves: Sequence[PublicCurve]) -> list[tuple[PublicCurve, float]]:
    """Return the curves that have a say and how much, the largest first."""
    found = [
        (one, exp(-_distance(asked, one)))
        for one in curves
        if one.has_rows and one.is_mixture == asked.is_mixture and (one.backend == "cpu") == (asked.backend == "cpu")
    ]
    return sorted(found, key=lambda pair: -pair[1])


def _distance(asked: Asked, curve: PublicCurve) -> float:
    differs = sum(far for name, far in _FARTHER.items() if getattr(asked, name) != getattr(curve, name))
    differs += _FARTHER_PER_KIND * abs(WEIGHT_KINDS[asked.weights] - WEIGHT_KINDS[curve.weights])
    size = abs(log((asked.billions or _USUAL_BILLIONS) / (curve.billions or _USUAL_BILLIONS)))
    age = max(0.0, NOW - curve.year)
    return differs + _FARTHER_PER_SIZE * size + _FARTHER_PER_YEAR * age + _FARTHER_IF_DEEP * curve.is_deep


def _log_ratio(curve: PublicCurve, rows: int) -> float:
    found = curve.ratio(rows)
    assert found is not None, "asked within its rows"
    return log(found / curve.expert_factor(rows))
