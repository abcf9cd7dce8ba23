"""The speed that a device reaches by its data sheet: peaks times efficiencies, dispatch, and compiled shapes.

Numbers come from `sim.derived.sheet_numbers`; `sim.derived.roofline` computes the costs of models from the speed.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import hypot, log2
from typing import Any, Final

import numpy as np

from costs.cost_model import Floats
from decoding.errors import OutOfRangeError
from hwprofiles.curves.names import engine_of
from hwprofiles.curves.row_prices import AS_DENSE, RowPrices, StartsOfMixtures
from hwprofiles.engines import ANYWHERE, IK, LAW_ENGINE, READS_AGAIN, CurvePrices, engine_on, has_law
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import STARTED_BY, DeviceSheet
from sim.derived.assumption import Assumption
from sim.derived.sheet_numbers import CAPS, GROWING_ROWS, PEAKS, SheetNumbers, is_reached

LAW_ROWS: Final = 64
"""Largest number of rows for which the kernels of kernel laws were timed."""
KERNELS_PER_LAYER: Final = 8
"""Fused as in engines: norm, QKV projection, rotary embedding, attention, output, norm, gate and up, down."""
KERNELS_OF_HEAD: Final = 3
_READ_CACHE_ONCE: Final = (ANYWHERE, IK)
"""Engines whose kernels for GPUs read a long cache as fast for some rows as for one: 32,000 tokens of a Llama-3.1-8B on
an RTX 3090 add 4.6, 4.7 and 4.5 ms to 2, 4 and 8 rows (ggml-org/llama.cpp#17505, #15802), which is its full bandwidth;
alike for 1, 2 and 4 rows of a mixture, and for 1 and 2 on a Radeon 8060S (#29152, #28102)."""
ROW_BUCKETS: Final = (1, 4, 8, 16, 32, 64, 128)
"""Default `row_buckets` of a device with static shapes."""
CONTEXT_STEP: Final = 256
"""A device with static shapes pads contexts to a multiple of this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpeed:
    """The speed that one device reaches alone.

    Attributes:
        bytes_per_s: bandwidth reached in reading weights.
        cache_efficiency: bandwidth reached in reading the KV cache, over `bytes_per_s`.
        reads_cache_once: whether what is long of a cache is read no more slowly for some rows than for one.
        flops: reached half-precision FLOP/s.
        times_flops: speed-up over `flops` of layers that are multiplied in fewer bits, by weight format; other formats
            are widened to half precision before.
        unhidden_share: share of computing that a measured kernel law adds to starts and reading; 0 if curves tell the
            cost of rows; None without a law.
        growth_per_row: relative slowdown of reading per further row, up to eight rows; used if `prices` is None.
        prices: relative cost of rows by an engine's public curves.
        kernel_s: dispatch or start of one kernel; 0 if whole graphs are dispatched.
        starts_of_mixtures: starts of kernels in a mixture of experts over those in a dense model.
        graph_s: dispatch of one compiled graph, which is one operation; else 0.
        engine_step_s: time of the engine's host code per pass of a draft.
        steps_target: whether `engine_step_s` also counts for target passes: not if measured pass times include it.
        reads_again: whether the engine's draft model computes every verified row once more.
        queues_kernels: whether kernels are dispatched while earlier ones compute.
        row_buckets: rows that graphs are compiled for, ascending; rows are padded to the next bucket. Empty: any number
            of rows. With the single bucket 1, rows are computed one after the other.
        context_step: contexts are padded to a multiple of this.
        max_prompt: longest prompt; None if unlimited.
        assumptions: all numbers that the speed was computed from.
    """

    name: str
    bytes_per_s: float
    flops: float
    cache_efficiency: float = 1.0
    reads_cache_once: bool = False
    times_flops: Mapping[str, float] = field(default_factory=dict)
    unhidden_share: float | None = None
    growth_per_row: float = 0.0
    prices: RowPrices | None = None
    kernel_s: float = 0.0
    starts_of_mixtures: StartsOfMixtures = AS_DENSE
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
        """Return the rows of the smallest graph that holds `rows`; raises `OutOfRangeError` if there is none."""
        if not self.row_buckets or self.feeds_single_rows:
            return rows
        if rows > self.row_buckets[-1]:
            raise OutOfRangeError(f"{self.name} is compiled for at most {self.row_buckets[-1]} rows, not for {rows:g}")
        return self.row_buckets[bisect_left(self.row_buckets, rows)]

    @property
    def starts_ahead(self) -> bool:
        """Whether kernels are started while earlier ones compute, so that the larger of both times counts."""
        return self.unhidden_share is None and self.queues_kernels

    @property
    def is_by_law(self) -> bool:
        """Whether the cost of rows comes from a measured kernel law."""
        return self.unhidden_share is not None and self.prices is None

    @property
    def feeds_single_rows(self) -> bool:
        """Whether its only graph has one row, as OpenVINO GenAI's draft on an NPU (its pull request 2544)."""
        return self.row_buckets == (1,)

    def padded_context(self, context: Floats) -> Floats:
        """Return the context lengths, padded to a multiple of `context_step`."""
        padded: Floats = np.ceil(context / self.context_step) * self.context_step
        return padded

    def growth(self, rows: float) -> float:
        """Return the reading time for `rows` rows relative to one row."""
        if self.prices is not None:
            return float(np.interp(rows, self.prices.rows, self.prices.ratios))
        return 1 + self.growth_per_row * (min(rows, GROWING_ROWS) - 1)

    def weights_s(self, num_bytes: Any, rows: float) -> Any:
        """Return the seconds in which a pass over `rows` rows reads so many bytes of weights and states."""
        return num_bytes * self.growth(rows) / self.bytes_per_s

    def cache_s(self, num_bytes: Any, rows: float, grown_bytes: Any) -> Any:
        """Return the seconds in which a pass reads so many bytes of a cache; rows slow down `grown_bytes` of them."""
        read_bytes = num_bytes + (self.growth(rows) - 1) * grown_bytes
        return read_bytes / (self.bytes_per_s * self.cache_efficiency)

    @property
    def known_rows(self) -> int | None:
        """Largest number of rows with a known cost; None if rows are computed one after the other."""
        if self.feeds_single_rows:
            return None
        if self.is_by_law:
            return LAW_ROWS
        return GROWING_ROWS if self.prices is None else self.prices.rows[-1]

    @property
    def cache_error(self) -> float:
        """Relative error (half-width, 90 %) of the time in which the cache is read."""
        found = (one for one in self.assumptions if one.number == "cache_efficiency" and one.high > one.low)
        return hypot(*(one.value * (1 / one.low - 1 / one.high) / 2 for one in found))

    def growing_on(self, rows: float) -> "DeviceSpeed":
        """Return the device with a growth as if all of `rows` slowed reading, and not only the first eight."""
        further = (max(self.padded_rows(rows), GROWING_ROWS) - 1) / (GROWING_ROWS - 1)
        return replace(self, growth_per_row=self.growth_per_row * further)

    def growth_error(self, rows: float) -> float:
        """Return the relative error (half-width, 90 %) of a pass over `rows` that comes from `growth` alone."""
        if self.prices is not None:
            doublings = log2(max(1.0, rows / self.prices.rows[-1]))  # beyond the last measured row
            return float(np.interp(rows, self.prices.rows, self.prices.errors)) * (1 + doublings)
        return (self.growth(rows) - 1) * self.error_of("growth_per_row") / self.growth(rows)

    def error_of(self, *numbers: str) -> float:
        """Return the combined relative error (half-width, 90 %) of the assumptions with these names."""
        found = (one for one in self.assumptions if one.number in numbers)
        return hypot(*(one.relative_error for one in found))

    @property
    def reading_error(self) -> float:
        """Relative error of `bytes_per_s`."""
        return self.error_of("memory_bytes_per_s", "memory_efficiency", *CAPS)

    @property
    def computing_error(self) -> float:
        """Relative error of `flops`."""
        return self.error_of("bf16_flops", *PEAKS.values(), "flops_efficiency", "unhidden_share")


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
    """Return the speed of a device on a memory of `peak_bytes_per_s`, with weights in some format.

    It reads at the sheet's cap for that format, else at the bandwidth times an efficiency. The efficiency and the cost
    of rows are the sheet's, else those of its engine's curves (`by_curves`), else guesses. `moved`: what-if values of
    `MOVABLE` numbers by field; the assumptions keep the original values. `num_together`: devices that share a model.

    Raises:
        ProfileError: the sheet lacks a number for which there is no guess.
    """
    # kernel laws hold for dense models only
    is_by_curves = by_curves is not None and (by_curves.reading is not None or by_curves.is_mixture)
    is_law = has_law(sheet, weights) and not is_by_curves
    found = SheetNumbers(name, sheet, by_curves, moved or {}, is_law=is_law)
    peak = found.known("memory_bytes_per_s", peak_bytes_per_s)
    of_format = f"{weights}_cap_bytes_per_s"
    cap = of_format if getattr(sheet, of_format, None) is not None else "memory_cap_bytes_per_s"
    reading = peak * found.take("memory_efficiency") if getattr(sheet, cap) is None else min(peak, found.take(cap))
    # unpacking the weights limits how fast these are read, not the cache
    own_cap = sheet.memory_cap_bytes_per_s
    reading_16_bits = reading if own_cap is None or cap == "memory_cap_bytes_per_s" else min(peak, own_cap.value)
    peak_flops = found.take("bf16_flops")
    efficiency = 1.0 if is_reached(sheet.bf16_flops) else found.take("flops_efficiency")
    # a law's unhidden share refers to the computing time at peak
    unhidden_share = (0.0 if found.prices else found.take("unhidden_share") * efficiency) if is_law else None
    dispatch_s = found.take("kernel_start_s" if is_law else "dispatch_s")
    is_graph = not is_law and (sheet.dispatch_of or STARTED_BY[sheet.kind]) == "graph"
    engine = engine_on(sheet, weights) or (LAW_ENGINE if is_law else None)
    return DeviceSpeed(
        name=name,
        bytes_per_s=reading,
        flops=peak_flops * efficiency,
        cache_efficiency=min(peak, found.take("cache_efficiency") * reading_16_bits) / reading,
        reads_cache_once=sheet.kind == "gpu" and engine_of(engine or "") in _READ_CACHE_ONCE,
        times_flops=found.times_flops(engine, weights, peak_flops * efficiency),
        unhidden_share=unhidden_share,
        growth_per_row=0.0 if is_law or found.prices is not None else found.take("growth_per_row"),
        prices=found.prices,
        kernel_s=0.0 if is_graph else dispatch_s,
        graph_s=dispatch_s if is_graph else 0.0,
        engine_step_s=found.engine_step_s(engine, num_together),
        steps_target=sheet.kind == "gpu" and found.reading is None and not found.is_calibrated,
        reads_again=engine_of(engine or "") in READS_AGAIN,
        starts_of_mixtures=found.starts_of_mixtures(),
        queues_kernels=sheet.kind != "npu" and found.reading is None and not found.waits_for_kernels,
        row_buckets=(sheet.row_buckets or ROW_BUCKETS) if sheet.static_shapes else (),
        context_step=CONTEXT_STEP if sheet.static_shapes else 1,
        max_prompt=sheet.max_prompt_tokens,
        assumptions=tuple(found.assumptions),
    )
