"""What graphs of a device have to keep to, checked before anything is compiled."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from decoding.errors import ConfigError
from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.backend import Plan
from runtime.backends.lane_device import NPU_POSITIONS, NPU_ROWS, Device
from runtime.backends.openvino.buckets import PROMPT_ROWS, row_bucket, slot_bucket
from runtime.instruction_set import has_vnni


@dataclass(frozen=True, slots=True)
class Limits:
    """What compiled models of a device have to keep to.

    Attributes:
        device: whose they are.
        half: its type of 16 bits; float32 where it has none.
        rows: numbers of rows that calls have; empty for any (`buckets.row_bucket`).
        num_slots: KV positions that a compiled model has at most, one of which is spare; None for any number.
    """

    device: Device
    half: np.dtype[Any]
    rows: tuple[int, ...] = ()
    num_slots: int | None = None

    def bucket(self, count: int) -> int:
        """Rows of the graph that serves so many.

        Raises:
            ConfigError: no graph does.
        """
        if not self.rows:
            return row_bucket(count)
        if count > self.rows[-1]:
            raise ConfigError(
                f"a step of {count} rows does not fit {self.device.name}: its graphs have {self.rows[-1]} at most. "
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
            f"a sequence of {plan.num_slots} KV positions, {plan.num_prompt} of them its prompt's, does not fit "
            f"{self.device.name}: it has {self.num_slots - 1} at most. A shorter prompt or fewer new tokens do"
        )


def limits_of(device: Device) -> Limits:
    """Return the limits of a device."""
    if device.is_npu:
        return Limits(device, np.dtype(np.float16), NPU_ROWS, NPU_POSITIONS)
    return Limits(device, FLOAT32 if device.has_open_sizes and not cpu_computes_bfloat16() else BFLOAT16)


@cache
def cpu_computes_bfloat16() -> bool:
    """Return whether graphs compute in bfloat16 on this CPU.

    Without them OpenVINO computes a graph of bfloat16 in float32 and rounds keys where they leave a call alone: rows of
    one call saw each other's keys as they were, and those of the next one rounded ones.
    """
    from runtime.backends.openvino.library import ov

    return has_vnni() and "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
