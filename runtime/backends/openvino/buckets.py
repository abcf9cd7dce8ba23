"""The sizes of compiled graphs: a graph of static shape serves all calls that are not larger.

A graph of static shape holds the weights packed for its rows, so there are few. One of dynamic shape gets a new memory
layout whenever the size of a call changes, which takes much of a small decoder's pass and little of a large one's. So a
small decoder has a copy for each number of rows and of a few texts, a middling one for the fewest rows of a sequence
whose calls have others too, a large one none.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from decoding.errors import ConfigError
from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.backend import Preparation
from runtime.backends.lane_device import NPU_POSITIONS, NPU_ROWS, Device
from runtime.instruction_set import has_vnni

_ROWS: Final = (*range(1, 10), 12, 16, 24, 32, 48, 64, 96, 128)
"""Rows of graphs on devices without limits of their own."""
_SMALL: Final = 16
"""A graph of up to so many rows may be padded from any number."""
PROMPT_ROWS: Final = (16, 64)
"""Rows of a prompt in one call, beyond those of windows."""

Size = tuple[int, int]
"""Texts (sequences or branches, the batch dimension), and rows of each."""

SINGLE_ROW: Final[Size] = (1, 1)
SEVERAL_TEXTS: Final[Size] = (0, 1)
"""The size of calls over any number of texts that has no copy of its own."""
COPIES_BYTES: Final = 512_000_000
"""Bytes of weights that copies may hold besides the first graph."""
_SMALL_COPIES: Final = 8
"""A decoder is small if so many copies of it fit."""
_FEW_TEXTS: Final = 8
"""Numbers of texts up to this one have a copy each: that saves a third of a small draft's step over two texts in turn
with steps over others, and hardly anything of a step over many."""


def row_bucket(num_rows: int) -> int:
    """Return the rows of the graph that serves `num_rows`: from 129 on a multiple of 64."""
    return _ROWS[bisect_left(_ROWS, num_rows)] if num_rows <= _ROWS[-1] else num_rows + -num_rows % 64


def pieces(num_rows: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of calls over rows: full graphs, then one that is at least half full or small."""
    start, ascending = 0, sorted(sizes)
    while start < num_rows:
        left = num_rows - start
        whole = next((size for size in ascending if size >= left), None)
        full = max((size for size in ascending if size < left), default=left)
        is_cut = whole is None or (whole > _SMALL and 2 * left <= whole)
        stop = start + full if is_cut else num_rows
        yield start, stop
        start = stop


def is_small(num_bytes: int) -> bool:
    """Return whether a decoder of `num_bytes` is small: it has a copy for each number of rows."""
    return COPIES_BYTES // num_bytes >= _SMALL_COPIES


def own_size(size: Size, num_bytes: int) -> Size | None:
    """Return the size of a copy for calls of this size in a decoder of `num_bytes`; None if they share a graph.

    Calls over many texts share a copy: a new layout then takes less than padding. Those over few take half at most.
    """
    num_copies = COPIES_BYTES // num_bytes
    if not is_small(num_bytes):
        return size if num_copies and size[0] == 1 else None
    return size if size[0] <= min(_FEW_TEXTS, num_copies // 2) else SEVERAL_TEXTS


def sizes_with_copies(sizes: Collection[Size], num_bytes: int) -> set[Size]:
    """Return which of a sequence's sizes of calls are to have copies, see the module."""
    if is_small(num_bytes):
        return set(sizes)
    return {min(sizes)} if len(set(sizes)) > 1 else set()


def copies_bytes(num_bytes: int) -> int:
    """Return the most bytes that copies of a decoder of `num_bytes` take, with the exported graph."""
    if is_small(num_bytes):
        return COPIES_BYTES + num_bytes
    return num_bytes if num_bytes <= COPIES_BYTES else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a device's compiled models: its type of 16 bits, numbers of rows (empty: any), slots (None: any)."""

    device: Device
    half: np.dtype[Any]
    rows: tuple[int, ...] = ()
    num_slots: int | None = None

    def bucket(self, count: int) -> int:
        """Return the rows of the graph that serves `count`; raise `ConfigError` if none does."""
        if not self.rows:
            return row_bucket(count)
        if count > self.rows[-1]:
            raise ConfigError(
                f"a step of {count} rows does not fit {self.device.name}: its graphs have {self.rows[-1]} at most. "
                "Fewer branches or a shorter window do"
            )
        return self.rows[bisect_left(self.rows, count)]

    def require(self, plan: Preparation) -> None:
        """Raise `ConfigError` for a sequence that has no graphs, with the number that is too large and the largest."""
        for count in (*plan.rows, plan.num_branches, *(PROMPT_ROWS if plan.num_prompt else ())):
            if count:
                self.bucket(count)
        if self.num_slots is None or self.device.num_slots(plan.num_slots) <= self.num_slots:
            return
        raise ConfigError(
            f"a sequence of {plan.num_slots} KV positions, {plan.num_prompt} of them its prompt's, does not fit "
            f"{self.device.name}: it has {self.num_slots - 1} at most. A shorter prompt or fewer new tokens do"
        )


def limits_of(device: Device) -> Limits:
    """Return the limits of a device."""
    if device.is_npu:
        return Limits(device, np.dtype(np.float16), NPU_ROWS, NPU_POSITIONS)
    return Limits(device, FLOAT32 if device.has_dynamic_shapes and not cpu_computes_bfloat16() else BFLOAT16)


@cache
def cpu_computes_bfloat16() -> bool:
    """Return whether graphs compute in bfloat16 on this CPU.

    Without it OpenVINO computes in float32 and rounds keys only where they leave a call: rows of one call would see
    each other's keys in float32, and rows of the next call rounded ones.
    """
    from runtime.backends.openvino.library import new_core

    return has_vnni() and "BF16" in new_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
