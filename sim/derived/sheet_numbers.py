"""Numbers of a data sheet, or what replaces them: public curves of an engine, or guesses by the kind of device."""

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
from hwprofiles.curves.row_prices import Reading, RowPrices
from hwprofiles.engines import ANYWHERE, EAGER, LAW_ENGINE, CurvePrices, is_eager
from hwprofiles.quantity import CALIBRATION, Quantity, Status
from hwprofiles.sheets import DeviceKind, DeviceSheet, is_shipped
from sim.derived.assumption import Assumption

_START_SOURCE: Final = "what predicts one-row speeds best of devices that are left out (benchmarks/row_curves.py)"
GROWING_ROWS: Final = 8
_USUAL_ROWS: Final = 5
"""Rows of a usual verification, up to which the growth by curves is told."""
PEAKS: Final = {"fp8": "fp8_flops", "w8a8": "int8_ops", "nvfp4": "fp4_flops"}
"""Peaks of formats of which engines of servers multiply rows in as few bits as weights: W8A8 and W4A4."""
MOVABLE: Final = (
    *("memory_efficiency", "bf16_flops", *PEAKS.values(), "flops_efficiency", "unhidden_share"),
    *("dispatch_s", "kernel_start_s", "engine_step_s", "growth_per_row", "starts_of_mixtures"),
)
"""Numbers of a device that a what-if can replace."""
_OF_SOCKETS: Final = {"memory_efficiency": "socket_memory_efficiency", "dispatch_s": "socket_start_s"}
"""Guesses in place of others, of a CPU with memory of its own."""
CAPS: Final = ("memory_cap_bytes_per_s", "int8_cap_bytes_per_s", "int4_cap_bytes_per_s")
"""What a device reads at most, by how weights are stored."""


@cache
def guesses() -> Mapping[str, Mapping[DeviceKind, Quantity]]:
    """Return numbers for sheets that do not give them, by field and kind of device."""
    return load_yaml(Path(__file__).with_name("guesses.yaml"), dict[str, dict[DeviceKind, Quantity]])


class SheetNumbers:
    """The numbers of a sheet, or what replaces them; `assumptions` keeps those that were taken.

    Where curves tell the efficiency of reading (`reading`), kernels start as these found, too: their efficiency does
    not count the starts. So it is of a CPU with memory of its own (`is_socket`) that nobody measured: a model of 12B
    reached twice the share of the bandwidth that one of 0.6B did. And so it is of a CPU whose sheet says what a kernel
    takes to start (`waits_for_kernels`): its threads wait for each other. A what-if of the efficiency changes nothing
    else.
    What an eager framework takes counts before what the device is guessed to.
    """

    def __init__(
        self, name: str, sheet: DeviceSheet, by_curves: CurvePrices | None, moved: Mapping[str, float], *, is_law: bool
    ) -> None:
        self._name, self._sheet, self._moved = name, sheet, moved
        self.assumptions: list[Assumption] = []
        laws = () if is_law else ("memory_efficiency", "flops_efficiency")  # which are of another engine's kernels
        not_here = {name for name in laws if _is_of_law(sheet, name)}
        own = sheet.memory_efficiency
        reading = None if by_curves is None else by_curves.reading
        is_known = own is not None and own.status != "guessed"
        self.is_calibrated = own is not None and own.by == CALIBRATION
        is_of_mixtures = by_curves is not None and by_curves.is_mixture and reading is not None
        if is_of_mixtures and sheet.kind == "gpu" and own is not None and is_shipped("memory_efficiency", own):
            not_here.add("memory_efficiency")  # which sheets that ship have of dense models
        self._not_here = frozenset(not_here)
        self._efficiency = None if "memory_efficiency" in not_here else own
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
        """Return a number of the sheet, of curves, or a guess."""
        if self.reading is not None and field == "memory_efficiency" and self._efficiency is None:
            value, error = self.reading.efficiency, self.reading.error
            return self._by_curves(field, value, (value / (1 + error), min(1.0, value * (1 + error))), self.reading)
        return self.known(field, self._own_or_guess(field))

    def _own_or_guess(self, field: str) -> Quantity:
        own: Quantity | None = None if field in self._not_here else getattr(self._sheet, field)
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
        """Return how many times as fast as the `half` reached in 16 bits an engine multiplies; others are assumed."""
        peaks = {name: getattr(self._sheet, peak) for name, peak in PEAKS.items()}
        if engine_of(engine or "") != LAW_ENGINE:
            return {}
        return {
            name: self._reached(PEAKS[name], one, is_told=name == weights) / half
            for name, one in peaks.items()
            if one is not None
        }

    def _reached(self, field: str, peak: Quantity, *, is_told: bool) -> float:
        """Return what is reached of a peak, which an assumption tells or not."""
        numbers = {field: peak}
        if not is_reached(peak):
            numbers["flops_efficiency"] = self._own_or_guess("flops_efficiency")
        return prod(
            self.known(name, one) if is_told else self._or_moved(name, one.value) for name, one in numbers.items()
        )

    def starts_of_mixtures(self) -> float:
        """Return how many times as many operations an eager framework starts for a mixture."""
        guess = guesses()[f"starts_of_mixtures/{EAGER}"]["gpu"]
        return self.known("starts_of_mixtures", self._sheet.starts_of_mixtures or guess)

    def engine_step_s(self, engine: str | None, num_together: int) -> float:
        """Return the sheet's number, or the guess for an engine: of one that nobody knows it is llama.cpp's."""
        if engine is None and self._sheet.engine_step_s is None:
            return 0.0
        name = (engine_of(engine or "") or ANYWHERE).removeprefix("ik_")
        name = name if f"engine_step_s/{name}" in guesses() else ANYWHERE
        name += " split" * (name == ANYWHERE and num_together > 1)
        guess = guesses()[f"engine_step_s/{name}"]["gpu"]
        return self.known("engine_step_s", self._sheet.engine_step_s or guess)

    def known(self, field: str, quantity: Quantity) -> float:
        """Return the value of a quantity, or what replaces it."""
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
    """Return whether a number is what was reached, not a peak of which some share is."""
    return peak is not None and peak.status == "measured"


def _is_of_law(sheet: DeviceSheet, name: str) -> bool:
    """Return whether a number of a sheet is by those who timed the kernels of its law."""
    own, start = getattr(sheet, name), sheet.kernel_start_s
    if own is None or start is None:
        return False
    return own.source == start.source or (own.by is not None and own.by == start.by)


def _growths_per_row(prices: RowPrices) -> list[float]:
    """Return the growth per row up to those of a usual window that curves come to, and its ends: it is not negative."""
    ratio, error = (float(np.interp(_USUAL_ROWS, prices.rows, of)) for of in (prices.ratios, prices.errors))
    return [max(0.0, one - 1) / (_USUAL_ROWS - 1) for one in (ratio, ratio / (1 + error), ratio * (1 + error))]
