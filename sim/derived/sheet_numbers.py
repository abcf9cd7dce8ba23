"""Looks up the numbers of a device: its data sheet's, else public curves of its engine, else guesses by its kind."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from decoding.errors import ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.curves.names import engine_of
from hwprofiles.curves.row_prices import AS_DENSE, Reading, RowPrices, StartsOfMixtures
from hwprofiles.engines import ANYWHERE, EAGER, LAW_ENGINE, CurvePrices, is_eager
from hwprofiles.quantity import CALIBRATION, Quantity, Status
from hwprofiles.sheets import DeviceKind, DeviceSheet, is_shipped
from sim.derived.assumption import Assumption

_START_SOURCE: Final = "what predicts one-row speeds best of devices that are left out (benchmarks/row_curves.py)"
GROWING_ROWS: Final = 8
"""Rows up to which `growth_per_row` slows reading."""
_USUAL_ROWS: Final = 5
"""Rows of a typical verification, at which the growth of public curves is converted to `growth_per_row`."""
PEAKS: Final = {"fp8": "fp8_flops", "w8a8": "int8_ops", "nvfp4": "fp4_flops"}
"""Peaks of formats whose activations server engines also convert to few bits (W8A8, W4A4), by weight format."""
MOVABLE: Final = (
    *("memory_efficiency", "cache_efficiency", "bf16_flops", *PEAKS.values(), "flops_efficiency", "unhidden_share"),
    *("dispatch_s", "kernel_start_s", "engine_step_s", "growth_per_row", "starts_of_mixtures"),
)
"""Numbers of a device that a what-if value can replace."""
_OF_SOCKETS: Final = {"memory_efficiency": "socket_memory_efficiency", "dispatch_s": "socket_start_s"}
"""Names of the guesses for a CPU with its own memory, by field."""
CAPS: Final = ("memory_cap_bytes_per_s", "int8_cap_bytes_per_s", "int4_cap_bytes_per_s")
"""Limits of a device's read bandwidth: in general, and by weight format."""


@cache
def guesses() -> Mapping[str, Mapping[DeviceKind, Quantity]]:
    """Return the guesses for numbers that sheets do not give, by field and kind of device."""
    return load_yaml(Path(__file__).with_name("guesses.yaml"), dict[str, dict[DeviceKind, Quantity]])


class SheetNumbers:
    """Looks up the numbers of a device; `assumptions` collects the numbers that were used.

    If curves tell the reading efficiency (`reading`), the kernel start is theirs too, since their efficiency excludes
    starts. `waits_for_kernels`: kernel starts are added to reading, not overlapped. That is so on a CPU whose sheet
    gives a kernel's dispatch, as its threads wait for each other, and on an unmeasured CPU with its own memory
    (`is_socket`), where a 12B model reached twice the bandwidth share of a 0.6B one.

    A what-if value of the efficiency changes nothing else. Guesses for an eager framework precede those for the device.
    """

    def __init__(
        self, name: str, sheet: DeviceSheet, by_curves: CurvePrices | None, moved: Mapping[str, float], *, is_law: bool
    ) -> None:
        self._name, self._sheet, self._moved = name, sheet, moved
        self.assumptions: list[Assumption] = []
        # without the law's engine, the efficiencies that were measured with its kernels do not apply
        ignored = {name for name in ("memory_efficiency", "flops_efficiency") if not is_law and _is_of_law(sheet, name)}
        own = sheet.memory_efficiency
        reading = None if by_curves is None else by_curves.reading
        is_known = own is not None and own.status != "guessed"
        self.is_calibrated = own is not None and own.by == CALIBRATION
        is_of_mixtures = by_curves is not None and by_curves.is_mixture and reading is not None
        if is_of_mixtures and sheet.kind == "gpu" and own is not None and is_shipped("memory_efficiency", own):
            ignored.add("memory_efficiency")  # shipped sheets have that of dense models
        self._ignored = frozenset(ignored)
        self._efficiency = None if "memory_efficiency" in ignored else own
        is_capped = any(getattr(sheet, cap) is not None for cap in CAPS)
        self.is_socket = sheet.kind == "cpu" and sheet.memory_pool is None and not is_known and not is_capped
        self.waits_for_kernels = self.is_socket or (sheet.kind == "cpu" and sheet.dispatch_of == "kernel")
        self.reading = None if self._efficiency is not None and self._efficiency.status != "guessed" else reading
        self.prices = by_curves.rows if by_curves is not None and sheet.growth_per_row is None else None
        if self.prices is not None:
            value, *ends = _growths_per_row(self.prices)
            growth = self._by_curves("growth_per_row", value, (ends[0], ends[1]), self.prices)
            if growth != value:
                straight = (min(rows, GROWING_ROWS) - 1 for rows in self.prices.rows)
                each = ((ratio - 1) / value for ratio in self.prices.ratios) if value else straight
                self.prices = replace(self.prices, ratios=tuple(1 + growth * one for one in each))

    def take(self, field: str) -> float:
        """Return the value of a field: the sheet's, the curves' or a guess, with its what-if value if there is one."""
        if self.reading is not None and field == "memory_efficiency" and self._efficiency is None:
            value, error = self.reading.efficiency, self.reading.error
            return self._by_curves(field, value, (value / (1 + error), min(1.0, value * (1 + error))), self.reading)
        return self.known(field, self._own_or_guess(field))

    def _own_or_guess(self, field: str) -> Quantity:
        own: Quantity | None = None if field in self._ignored else getattr(self._sheet, field)
        if self.reading is not None and field == "dispatch_s" and own is None:
            start_s = self.reading.kernel_start_s
            span = start_s / 2, 2 * start_s
            own = Quantity(value=start_s, span=span, status="derived", source=_START_SOURCE)
        guessed = _OF_SOCKETS.get(field, field) if self.is_socket else field
        of_framework = guesses().get(f"{field}/{EAGER}") if is_eager(self._sheet) else None
        quantity = own or (of_framework or guesses().get(guessed, {})).get(self._sheet.kind)
        if quantity is None:
            of = f"the sheet of {self._name} ({self._sheet.name})"
            raise ProfileError(f"{of} gives no {field}; give it, or leave the device out")
        return quantity

    def times_flops(self, engine: str | None, weights: str | None, half: float) -> dict[str, float]:
        """Return the FLOP/s reached in fewer bits over those in half precision (`half`), by weight format.

        It is empty for other engines than vLLM. Only the peak of `weights` is kept as an assumption.
        """
        peaks = {name: getattr(self._sheet, peak) for name, peak in PEAKS.items()}
        if engine_of(engine or "") != LAW_ENGINE:
            return {}
        return {
            name: self._reached(PEAKS[name], one, is_told=name == weights) / half
            for name, one in peaks.items()
            if one is not None
        }

    def _reached(self, field: str, peak: Quantity, *, is_told: bool) -> float:
        """Return the rate reached of a peak; `is_told`: keep its numbers as assumptions."""
        numbers = {field: peak}
        if not is_reached(peak):
            numbers["flops_efficiency"] = self._own_or_guess("flops_efficiency")
        return prod(
            self.known(name, one) if is_told else self._or_moved(name, one.value) for name, one in numbers.items()
        )

    def starts_of_mixtures(self) -> StartsOfMixtures:
        """Return starts in a mixture over those in a dense model: an eager framework's, or the engine's by curves."""
        if not is_eager(self._sheet):
            return AS_DENSE if self.reading is None else self.reading.starts
        guess = guesses()[f"starts_of_mixtures/{EAGER}"]["gpu"]
        return StartsOfMixtures(self.known("starts_of_mixtures", self._sheet.starts_of_mixtures or guess))

    def engine_step_s(self, engine: str | None, num_together: int) -> float:
        """Return the engine's host time per pass: the sheet's, else the engine's guess, else llama.cpp's."""
        if engine is None and self._sheet.engine_step_s is None:
            return 0.0
        name = (engine_of(engine or "") or ANYWHERE).removeprefix("ik_")
        name = name if f"engine_step_s/{name}" in guesses() else ANYWHERE
        if name == ANYWHERE and num_together > 1:
            name = f"{name} split"
        guess = guesses()[f"engine_step_s/{name}"]["gpu"]
        return self.known("engine_step_s", self._sheet.engine_step_s or guess)

    def known(self, field: str, quantity: Quantity) -> float:
        """Keep a quantity as an assumption; return its value, or its what-if value if there is one."""
        if (one := Assumption.of_quantity(f"{self._name}.{field}", quantity)) not in self.assumptions:
            self.assumptions.append(one)
        return self._or_moved(field, quantity.value)

    def _by_curves(self, field: str, value: float, span: tuple[float, float], of: Reading | RowPrices) -> float:
        status: Status = "measured" if of.step == "device" else "derived"
        source = f"by step {of.step!r}: {of.source}"
        self.assumptions.append(Assumption.of(f"{self._name}.{field}", value, status, source, span=span))
        return self._or_moved(field, value)

    def _or_moved(self, field: str, value: float) -> float:
        return self._moved.get(f"{self._name}.{field}", value) if field in MOVABLE else value


def is_reached(peak: Quantity | None) -> bool:
    """Return whether a rate is one that was reached (measured) and not a peak."""
    return peak is not None and peak.status == "measured"


def _is_of_law(sheet: DeviceSheet, name: str) -> bool:
    """Return whether a sheet's number has the source of its kernel law."""
    own, start = getattr(sheet, name), sheet.kernel_start_s
    if own is None or start is None:
        return False
    return own.source == start.source or (own.by is not None and own.by == start.by)


def _growths_per_row(prices: RowPrices) -> list[float]:
    """Return the mean growth per row up to `_USUAL_ROWS` by curves, and the ends of its interval; none is negative."""
    ratio, error = (float(np.interp(_USUAL_ROWS, prices.rows, of)) for of in (prices.ratios, prices.errors))
    return [max(0.0, one - 1) / (_USUAL_ROWS - 1) for one in (ratio, ratio / (1 + error), ratio * (1 + error))]
