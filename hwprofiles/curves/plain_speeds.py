"""How fast engines decode plainly, by all public speeds of one row: each says more, the more like the question it is.

A pass of one row takes what reading takes, and the starts of its layers' kernels, times a factor::

    seconds = (floor_s / BEST_EFFICIENCY + layers * start_s) * factor

The logarithm of the factor is a Gaussian process (kriging): speeds have in common what devices, architectures, kinds of
weights, mixtures of experts and years of an engine have in common, and who measured them, as much as `_SHARED` says.
So a device or an engine that nobody measured has an answer too, and every answer its own error. Shares and starts are
those that predict best what is left out, a device at a time (`benchmarks/row_curves.py` says by how much it is off).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwprofiles.curves.asked import WEIGHT_KINDS, Asked, Step, told_by
from hwprofiles.curves.row_curves import PublicCurve, read_curves

Floats = NDArray[np.float64]
BEST_EFFICIENCY: Final = 0.9
_START_S: Final = {"cpu": 0.0, "mlx": 75e-6, "vllm": 40e-6, "cuda": 35e-6, "vulkan": 45e-6, "metal": 90e-6}
"""Of a layer's kernels, by engine, else back end."""
_OTHER_START_S: Final = 80e-6
_SHARED: Final[dict[tuple[str, ...], float]] = {
    (): 0.6,
    ("family",): 0.008,
    ("device",): 0.012,
    ("weights",): 0.01,
    ("weights", "engine", "backend"): 0.016,
    ("is_mixture", "engine"): 0.035,
    ("year", "engine"): 0.01,
    ("source",): 0.02,
}
"""Variance of the logarithm that speeds have in common which are alike in all of these."""
_PER_STEP: Final = {"weights": 0.3, "year": 5.0}
"""Apart by which they have e times less of it in common; of all else: nothing, unless it is the same."""
_OWN: Final = 0.014
"""Variance of a speed alone."""
NORMAL_90: Final = 1.645


class Reading(NamedTuple):
    """How fast an engine decodes on a device.

    Attributes:
        efficiency: share of its bandwidth at which it reads weights.
        start_s: of the kernels of a layer.
        error: half-width at 90 % of the time that follows, relative.
        step, source: how near the nearest speed is, and which ones say most.
    """

    efficiency: float
    start_s: float
    error: float
    step: Step
    source: str


class PlainSpeeds:
    """Public speeds of one row, ready to be asked."""

    def __init__(self, curves: Sequence[PublicCurve]) -> None:
        self.curves = tuple(one for one in curves if one.floor_s is not None)
        self._asked = [Asked.of_curve(one) for one in self.curves]
        known = zip(self.curves, self._asked, strict=True)
        usual_s = [(one.floor_s or 0.0) / BEST_EFFICIENCY + one.layers * _start_s(asked) for one, asked in known]
        self._logs = np.log([one.one_row_s for one in self.curves]) - np.log(usual_s)
        self._inverse = np.linalg.inv(_shared(self._asked, self._asked) + _OWN * np.eye(len(self.curves)))

    def reading(self, asked: Asked) -> Reading:
        """Return the answer to a question."""
        common = _shared([asked], self._asked)[0]
        says = common @ self._inverse
        factor = exp(float(says @ self._logs))
        variance = float(_shared([asked], [asked])[0, 0] - says @ common) + _OWN
        return Reading(
            efficiency=BEST_EFFICIENCY / factor,
            start_s=_start_s(asked) * factor,
            error=NORMAL_90 * sqrt(variance),
            step=asked.step(self.curves),
            source=told_by(self.curves, np.abs(says).tolist()),
        )

    def left_out(self, groups: Sequence[str]) -> tuple[Floats, Floats]:
        """Return what every logarithm is off by where all of its group is not known, and the standard deviation of it.

        Each has shape (curves,).
        """
        told = self._inverse @ self._logs
        errors, deviations = np.zeros(len(groups)), np.zeros(len(groups))
        for group in set(groups):
            own = [place for place, other in enumerate(groups) if other == group]
            among = np.linalg.inv(self._inverse[np.ix_(own, own)])
            errors[own], deviations[own] = among @ told[own], np.sqrt(np.diag(among))
        return errors, deviations


@cache
def shipped_speeds() -> PlainSpeeds:
    """Return those of all curves that ship."""
    return PlainSpeeds(read_curves())


def _start_s(asked: Asked) -> float:
    """Return what the kernels of a layer take to start on such an engine, whatever the device."""
    name = "cpu" if asked.backend == "cpu" else asked.engine
    return _START_S.get(name, _START_S.get(asked.backend, _OTHER_START_S))


def _shared(some: Sequence[Asked], others: Sequence[Asked]) -> Floats:
    """Return the covariance of logarithms, shape (some, others)."""
    total = np.zeros((len(some), len(others)))
    for names, variance in _SHARED.items():
        alike = np.full_like(total, variance)
        for name in names:
            mine, yours = (np.array([_place(one, name) for one in of])[:, None] for of in (some, others))
            if name in _PER_STEP:
                alike *= np.exp(-np.abs(mine - yours.T) / _PER_STEP[name])
            else:
                alike *= mine == yours.T
        total += alike
    return total


def _place(asked: Asked, name: str) -> float | str:
    """Return where a question stands in one respect; all that come from llama.cpp have its kernels."""
    value = getattr(asked, name)
    if name == "engine" and "llama" in value:
        return "llama.cpp"
    return WEIGHT_KINDS[value] if name == "weights" else value
