"""What a device achieves by its data sheet: peaks times efficiencies, dispatch, and the shapes it was compiled for.

A number that the sheet does not give is guessed by the kind of device. `sim.derived.roofline` prices models with it.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import hypot, log2
from pathlib import Path
from typing import Final, Literal

import numpy as np

from costs.cost_model import Floats
from decoding.errors import OutOfRangeError, ProfileError
from decoding.yaml_file import load_yaml
from hwprofiles.curves.names import engine_of
from hwprofiles.curves.row_prices import Reading, RowPrices
from hwprofiles.engines import ANYWHERE, EAGER, LAW_ENGINE, READS_AGAIN, CurvePrices, engine_on, has_law, is_eager
from hwprofiles.quantity import CALIBRATION, Quantity, Status
from hwprofiles.sheets import STARTED_BY, DeviceSheet
from sim.derived.assumption import Assumption

Kind = Literal["cpu", "gpu", "npu"]


_START_SOURCE: Final = "what predicts one-row speeds best of devices that are left out (benchmarks/row_curves.py)"
GROWING_ROWS: Final = 8
LAW_ROWS: Final = 64
"""Rows up to which kernels were timed for laws."""
_USUAL_ROWS: Final = 5
"""Rows of a usual verification, up to which the growth by curves is told."""
KERNELS_PER_LAYER: Final = 8
"""Norm, projections as one, rotation, attention, output, norm, gate with up, down: fused as engines do."""
KERNELS_OF_HEAD: Final = 3
ROW_BUCKETS: Final = (1, 4, 8, 16, 32, 64, 128)
"""Default `row_buckets` of a device with static shapes."""
_PEAKS: Final = {"fp8": "fp8_flops", "w8a8": "int8_ops", "nvfp4": "fp4_flops"}
"""Peaks of formats of which engines of servers multiply rows in as few bits as weights: W8A8 and W4A4."""
MOVABLE: Final = (
    *("memory_efficiency", "bf16_flops", *_PEAKS.values(), "flops_efficiency", "unhidden_share"),
    *("dispatch_s", "kernel_start_s", "engine_step_s", "growth_per_row", "starts_of_mixtures"),
)
"""Numbers of a device that a what-if can replace."""
CONTEXT_STEP: Final = 256
"""Keys and values of a device with static shapes are padded to a multiple of this."""


_OF_SOCKETS: Final = {"memory_efficiency": "socket_memory_efficiency", "dispatch_s": "socket_start_s"}
"""Guesses in place of others, of a CPU with memory of its own."""
CAPS: Final = ("memory_cap_bytes_per_s", "int8_cap_bytes_per_s", "int4_cap_bytes_per_s")
"""What a device reads at most, by how weights are stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpeed:
    """What one device achieves alone.

    Attributes:
        bytes_per_s: achieved reading.
        flops: achieved half-precision FLOP/s.
        times_flops: how many times as fast layers' products are whose weights and rows are multiplied in fewer bits,
            by format of weights; those of all others are widened before they are multiplied.
        unhidden_share: share of computing that a measured kernel law adds to starts and reading; None without a law.
        growth_per_row: share by which each further row, up to eight, slows reading; used where `prices` is None.
        prices: the price of rows by public curves of an engine.
        kernel_s: dispatch of one kernel, or its start; 0 where whole graphs are dispatched.
        starts_of_mixtures: how many times as many kernels a mixture of experts starts.
        graph_s: dispatch of one compiled graph, which is one operation; else 0.
        engine_step_s: what an engine's host takes for each pass of a draft.
        steps_target: whether each pass of a target takes it, too, and does not have it in what was measured of passes.
        reads_again: whether the engine's draft model reads every verified row once more.
        queues_kernels: whether kernels are dispatched while earlier ones compute.
        row_buckets: rows that graphs are compiled for, ascending; fewer are padded. Empty: any number. With a single
            graph of one row, rows are fed to it one after the other.
        context_step: keys and values are padded to a multiple of this.
        max_prompt: longest prompt; None for any.
        assumptions: the numbers that all of it rests on.
    """

    name: str
    bytes_per_s: float
    flops: float
    times_flops: Mapping[str, float] = field(default_factory=dict)
    unhidden_share: float | None = None
    growth_per_row: float = 0.0
    prices: RowPrices | None = None
    kernel_s: float = 0.0
    starts_of_mixtures: float = 1.0
    graph_s: float = 0.0
    engine_step_s: float = 0.0
    steps_target: bool = False
    reads_again: bool = False
    queues_kernels: bool = True
    row_buckets: tuple[int, ...] = ()
    context_step: int = 1
    max_prompt: int | None = None
    assumptions: tuple[Assumption, ...] = ()

    def padded_rows(self, rows: float) -> float:
        """Return the rows of the smallest graph for `rows`; raise `OutOfRangeError` where no graph is that wide."""
        if not self.row_buckets or self.feeds_single_rows:
            return rows
        if rows > self.row_buckets[-1]:
            raise OutOfRangeError(f"{self.name} is compiled for at most {self.row_buckets[-1]} rows, not for {rows:g}")
        return self.row_buckets[bisect_left(self.row_buckets, rows)]

    @property
    def starts_ahead(self) -> bool:
        """Whether kernels are started while earlier ones compute, so that the longer of both counts."""
        return self.unhidden_share is None and self.queues_kernels

    @property
    def feeds_single_rows(self) -> bool:
        """Whether its only graph is of one row, as that of OpenVINO GenAI's draft on an NPU (its pull request 2544)."""
        return self.row_buckets == (1,)

    def padded_context(self, context: Floats) -> Floats:
        """Return the tokens whose keys and values are read for a context."""
        padded: Floats = np.ceil(context / self.context_step) * self.context_step
        return padded

    def growth(self, rows: float) -> float:
        """Return the time of reading for `rows` rows over that for one."""
        if self.prices is not None:
            return float(np.interp(rows, self.prices.rows, self.prices.ratios))
        return 1 + self.growth_per_row * (min(rows, GROWING_ROWS) - 1)

    @property
    def known_rows(self) -> int | None:
        """Most rows that there is a price of; None where they are fed one after the other."""
        if self.feeds_single_rows:
            return None
        if self.unhidden_share is not None:
            return LAW_ROWS
        return GROWING_ROWS if self.prices is None else self.prices.rows[-1]

    def growing_on(self, rows: float) -> "DeviceSpeed":
        """Return the device if all of `rows` rows slowed reading as the first eight do."""
        further = (max(self.padded_rows(rows), GROWING_ROWS) - 1) / (GROWING_ROWS - 1)
        return replace(self, growth_per_row=self.growth_per_row * further)

    def growth_error(self, rows: float) -> float:
        """Return the relative error (half-width, 90 %) of a pass over `rows` rows for its growth alone."""
        if self.prices is not None:
            doublings = log2(max(1.0, rows / self.prices.rows[-1]))  # beyond what was measured
            return float(np.interp(rows, self.prices.rows, self.prices.errors)) * (1 + doublings)
        return (self.growth(rows) - 1) * self.error_of("growth_per_row") / self.growth(rows)

    def error_of(self, *numbers: str) -> float:
        """Return the relative error (half-width, 90 %) of some of its numbers together."""
        found = (one for one in self.assumptions if one.field.rpartition(".")[2] in numbers)
        return hypot(*(one.relative_error for one in found))

    @property
    def reading_error(self) -> float:
        """Relative error of `bytes_per_s`."""
        return self.error_of("memory_bytes_per_s", "memory_efficiency", *CAPS)

    @property
    def computing_error(self) -> float:
        """Relative error of `flops`."""
        return self.error_of("bf16_flops", *_PEAKS.values(), "flops_efficiency", "unhidden_share")


def device_speed(
    name: str,
    sheet: DeviceSheet,
    peak_bytes_per_s: Quantity,
    by_curves: CurvePrices | None = None,
    weights: str | None = None,
    moved: Mapping[str, float] | None = None,
    *,
    num_together: int = 1,
) -> DeviceSpeed:
    """Return the speed of a device that could read `peak_bytes_per_s`, with weights in some format.

    It reads at its own cap of that format where that is known, else at that bandwidth times an efficiency. The
    efficiency and the price of rows are the sheet's, else those of its engine's curves (`hwprofiles.engines`), else
    guesses. `moved` holds values in place of `MOVABLE` numbers, by the fields of its assumptions, which stay.
    `num_together` such devices share a model.

    Raises:
        ProfileError: nothing tells what it computes.
    """
    is_law = has_law(sheet, weights) and by_curves is None
    found = _Numbers(name, sheet, by_curves, moved or {}, is_law=is_law)
    peak = found.known("memory_bytes_per_s", peak_bytes_per_s)
    of_format = f"{weights}_cap_bytes_per_s"
    cap = of_format if getattr(sheet, of_format, None) is not None else "memory_cap_bytes_per_s"
    reading = peak * found.take("memory_efficiency") if getattr(sheet, cap) is None else min(peak, found.take(cap))
    peak_flops = found.take("bf16_flops")
    is_reached = sheet.bf16_flops is not None and sheet.bf16_flops.status == "measured"
    efficiency = 1.0 if is_reached else found.take("flops_efficiency")
    # a law's share is of the time at peak
    unhidden_share = found.take("unhidden_share") * efficiency if is_law else None
    dispatch_s = found.take("kernel_start_s" if is_law else "dispatch_s")
    is_graph = not is_law and (sheet.dispatch_of or STARTED_BY[sheet.kind]) == "graph"
    engine = engine_on(sheet, weights) or (LAW_ENGINE if is_law else None)
    return DeviceSpeed(
        name=name,
        bytes_per_s=reading,
        flops=peak_flops * efficiency,
        times_flops=found.times_flops(engine, weights, peak_flops),
        unhidden_share=unhidden_share,
        growth_per_row=0.0 if is_law or found.prices is not None else found.take("growth_per_row"),
        prices=found.prices,
        kernel_s=0.0 if is_graph else dispatch_s,
        graph_s=dispatch_s if is_graph else 0.0,
        engine_step_s=found.engine_step_s(engine, num_together),
        steps_target=sheet.kind == "gpu" and found.reading is None and not found.is_calibrated,
        reads_again=engine_of(engine or "") in READS_AGAIN,
        starts_of_mixtures=found.starts_of_mixtures() if is_eager(sheet) else 1.0,
        queues_kernels=sheet.kind != "npu" and found.reading is None and not found.waits_for_kernels,
        row_buckets=(sheet.row_buckets or ROW_BUCKETS) if sheet.static_shapes else (),
        context_step=CONTEXT_STEP if sheet.static_shapes else 1,
        max_prompt=sheet.max_prompt_tokens,
        assumptions=tuple(found.assumptions),
    )


@cache
def guesses() -> Mapping[str, Mapping[Kind, Quantity]]:
    """Return numbers for sheets that do not give them, by field and kind of device."""
    return load_yaml(Path(__file__).with_name("guesses.yaml"), dict[str, dict[Kind, Quantity]])


class _Numbers:
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
        of_mixtures = None if by_curves is None or not by_curves.is_mixture else reading
        if of_mixtures is not None and sheet.kind == "gpu" and is_known and not self.is_calibrated:
            not_here.add("memory_efficiency")  # which sheets have of dense models
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
        own: Quantity | None = None if field in self._not_here else getattr(self._sheet, field)
        if self.reading is not None and field == "dispatch_s" and own is None:
            start_s = self.reading.kernel_start_s
            span = start_s / 2, 2 * start_s
            own = Quantity(value=start_s, span=span, status="derived", source=_START_SOURCE)
        if self.reading is not None and field == "memory_efficiency" and own is None:
            value, error = self.reading.efficiency, self.reading.error
            return self._by_curves(field, value, (value / (1 + error), min(1.0, value * (1 + error))), self.reading)
        guessed = _OF_SOCKETS.get(field, field) if self.is_socket else field
        of_framework = guesses().get(f"{field}/{EAGER}") if is_eager(self._sheet) else None
        quantity = own or (of_framework or guesses().get(guessed, {})).get(self._sheet.kind)
        if quantity is None:
            of = f"the sheet of {self._name} ({self._sheet.name})"
            raise ProfileError(f"{of} gives no {field}; give it, or leave the device out")
        return self.known(field, quantity)

    def times_flops(self, engine: str | None, weights: str | None, half: float) -> dict[str, float]:
        """Return how many times as fast as in half precision an engine multiplies, by format; others' are assumed."""
        peaks = {name: getattr(self._sheet, peak) for name, peak in _PEAKS.items()}
        if engine_of(engine or "") != LAW_ENGINE:
            return {}
        return {
            name: (self.known(_PEAKS[name], one) if name == weights else one.value) / half
            for name, one in peaks.items()
            if one is not None
        }

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
        self.assumptions.append(Assumption.of_quantity(f"{self._name}.{field}", quantity))
        return self._or_moved(field, quantity.value)

    def _by_curves(self, field: str, value: float, span: tuple[float, float], of: Reading | RowPrices) -> float:
        status: Status = "measured" if of.step == "device" else "derived"
        source = f"by step {of.step!r}: {of.source}"
        self.assumptions.append(Assumption.of(f"{self._name}.{field}", value, status, source, span=span))
        return self._or_moved(field, value)

    def _or_moved(self, field: str, value: float) -> float:
        return self._moved.get(f"{self._name}.{field}", value) if field in MOVABLE else value


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
