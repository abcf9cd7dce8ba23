"""What graphs of a device have to keep to, checked before anything is compiled."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from decoding.errors import ConfigError
from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends import npu
from runtime.backends.backend import Plan
from runtime.backends.openvino.buckets import PROMPT_ROWS, row_bucket, slot_bucket


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of the graphs for a device.

    Attributes:
        device: OpenVINO's name of it.
        half: its type of 16 bits; float32 where it has none.
        rows: numbers of rows that calls have; empty for any (`buckets.row_bucket`).
        num_slots: slots that a graph has at most, one of which is spare; None for any number.
        is_probed: whether it is asked from how many rows on a row's bits stay the same (`row_floor`).
        compiles_apart: whether its compiler may end the process, and is given one of its own.
        has_open_sizes: whether one graph serves any number of texts, rows and slots, else there is one for every size.
    """

    device: str
    half: np.dtype[Any] = BFLOAT16
    rows: tuple[int, ...] = ()
    num_slots: int | None = None
    is_probed: bool = True
    compiles_apart: bool = False
    has_open_sizes: bool = False

    def bucket(self, count: int) -> int:
        """Rows of the graph that serves so many.

        Raises:
            ConfigError: no graph does.
        """
        if not self.rows:
            return row_bucket(count)
        if count > self.rows[-1]:
            raise ConfigError(
                f"a step of {count} rows does not fit openvino:{self.device}: its graphs have {self.rows[-1]} at most. "
                "Fewer branches or a shorter window do"
            )
        return self.rows[bisect_left(self.rows, count)]

    def require(self, plan: Plan) -> None:
        """Refuse a sequence that has no graphs.

        Raises:
            ConfigError: says which number is too large, and the largest.
        """
        for count in (*plan.rows, plan.num_branches, *(PROMPT_ROWS if plan.num_prompt else ())):
            if count:
                self.bucket(count)
        if self.num_slots is None or slot_bucket(plan.num_slots) <= self.num_slots:
            return
        raise ConfigError(
            f"a sequence of {plan.num_slots} slots, {plan.num_prompt} of them its prompt's, does not fit "
            f"openvino:{self.device}: it has {self.num_slots - 1} at most. A shorter prompt or fewer new tokens do"
        )


def limits_of(device: str) -> Limits:
    """Those of a device, by OpenVINO's name."""
    if device == "CPU":
        return Limits(device=device, half=BFLOAT16 if _cpu_computes_bfloat16() else FLOAT32, has_open_sizes=True)
    if device.split(".", maxsplit=1)[0] != "NPU":
        return Limits(device=device)
    return Limits(
        device=device,
        half=np.dtype(np.float16),
        rows=npu.ROWS,
        num_slots=npu.SLOTS,
        is_probed=False,
        compiles_apart=True,
    )


@cache
def _cpu_computes_bfloat16() -> bool:
    """Whether the CPU has instructions for it.

    Without them OpenVINO computes a graph of bfloat16 in float32 and rounds keys where they leave a call alone: rows of
    one call saw each other's keys as they were, and those of the next one rounded ones.
    """
    from runtime.backends.openvino.library import ov

    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
