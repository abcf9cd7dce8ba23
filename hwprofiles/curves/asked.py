"""What public curves are asked for, and how near a curve is to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

from hwprofiles.curves.names import backend_of, device_key, engine_of, family_of, weights_class
from hwprofiles.curves.row_curves import PublicCurve

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
WEIGHT_KINDS: Final = {"codebook": 0, "low": 1, "four": 2, "fp4": 2.3, "eight": 3, "sixteen": 4}
"""Kernels that read weights, in the order of their bits."""
NOW: Final = 2026.9
"""When the curves were collected: the age of engines is told from there."""


class Asked(NamedTuple):
    """What a price is asked for, in the words of `hwprofiles.curves.names`; `billions` of weights that a row reads."""

    device: str
    family: str
    engine: str
    backend: str
    weights: str
    billions: float
    is_mixture: bool
    year: float = NOW
    source: str = ""

    @classmethod
    def of(cls, device: str, engine: str, weights: str, billions: float, *, is_mixture: bool) -> Asked:
        """Return it by the names that people use."""
        key, is_cpu = device_key(device), "cpu" in device.lower()
        family, backend = ("cpu", "cpu") if is_cpu else (family_of(key) or "", backend_of(f"{engine} {device}", key))
        kernels = weights_class(weights) or "four"
        return cls(key, family, engine_of(engine) or engine.lower(), backend, kernels, billions, is_mixture)

    @classmethod
    def of_curve(cls, one: PublicCurve) -> Asked:
        """Return what a curve is the answer to."""
        names = (one.device, one.family, one.engine, one.backend, one.weights)
        return cls(*names, one.billions, one.is_mixture, one.year, one.source)

    def step(self, curves: Sequence[PublicCurve]) -> Step:
        """Return how near the nearest of some curves is."""
        found = {self._step(curve) for curve in curves}
        return next(step for step in STEPS if step in found)

    def _step(self, curve: PublicCurve) -> Step:
        if curve.engine != self.engine:
            return "others"
        if curve.device == self.device:
            return "device" if (curve.backend, curve.weights) == (self.backend, self.weights) else "device otherwise"
        is_kin = curve.family == self.family != "" and curve.backend == self.backend
        return "family" if is_kin else "engine"


def told_by(curves: Sequence[PublicCurve], says: Sequence[float]) -> str:
    """Name the curves that say most, and the first of them in any case."""
    ordered = sorted(zip(says, curves, strict=True), key=lambda pair: -pair[0])
    most = [one for said, one in ordered if said > 0.15 * sum(says)] or [ordered[0][1]]
    return "; ".join(
        f"{one.model} {one.stored} on {one.device}, {one.engine} {one.backend} ({one.source}, {one.date})"
        for one in most
    )
