"""The sizes of compiled graphs, and which sizes of calls have a copy of a graph.

A graph of static shape serves all calls that are not larger. It holds its own packed weights, so there are few sizes. A
graph of dynamic shape needs a new memory layout whenever the size of its calls changes, which takes much of a small
decoder's pass and little of a large one's. So a small decoder has a copy of its graphs for each number of rows and for
a few numbers of texts; a medium one has a copy for the fewest rows of a sequence, if other calls have more; a large one
has no copies.
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
"""Numbers of rows of graphs, on devices without other limits."""
_SMALL: Final = 16
"""Calls of at most this many rows may be mostly padding."""
PROMPT_ROWS: Final = (16, 64)
"""Numbers of rows of a prompt's calls, besides those of windows."""

Size = tuple[int, int]
"""Texts (sequences or branches, the batch dimension), and rows of each."""

SINGLE_ROW: Final[Size] = (1, 1)
SEVERAL_TEXTS: Final[Size] = (0, 1)
"""The size of the copy that all calls over many texts share."""
COPIES_BYTES: Final = 512_000_000
"""Most bytes of weights in copies of graphs."""
_SMALL_COPIES: Final = 8
"""A decoder is small if this many copies of it fit."""
_FEW_TEXTS: Final = 8
"""Numbers of texts up to this one have a copy each. That saves a third of a small draft's step over two texts between
steps over other numbers, but little of a step over many texts."""


def row_bucket(num_rows: int) -> int:
    """Return the number of rows of the graph that serves `num_rows`; above 128 it is a multiple of 64."""
    return _ROWS[bisect_left(_ROWS, num_rows)] if num_rows <= _ROWS[-1] else num_rows + -num_rows % 64


def pieces(num_rows: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the calls over some rows: full ones, then one that is small or more than half full."""
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
    """Return whether a decoder of `num_bytes` is small, and so has a copy for each number of rows."""
    return COPIES_BYTES // num_bytes >= _SMALL_COPIES


def size_of_copy(size: Size, num_bytes: int) -> Size | None:
    """Return the size of the copy for calls of a size in a decoder of `num_bytes`; None if there is no copy for them.

    Calls over many texts share a copy, as a new layout takes less than padding then. Copies for few texts take at most
    half of the room for copies.
    """
    num_copies = COPIES_BYTES // num_bytes
    if not is_small(num_bytes):
        return size if num_copies and size[0] == 1 else None
    return size if size[0] <= min(_FEW_TEXTS, num_copies // 2) else SEVERAL_TEXTS


def sizes_with_copies(sizes: Collection[Size], num_bytes: int) -> set[Size]:
    """Return which sizes of a sequence's calls have copies, see the module's docstring."""
    if is_small(num_bytes):
        return set(sizes)
    return {min(sizes)} if len(set(sizes)) > 1 else set()


def copies_bytes(num_bytes: int) -> int:
    """Return the most bytes that copies of a decoder of `num_bytes` take, including the exported graph."""
    if is_small(num_bytes):
        return COPIES_BYTES + num_bytes
    return num_bytes if num_bytes <= COPIES_BYTES else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a device's graphs: its 16-bit type, possible numbers of rows (empty: any), most slots (None: any)."""

    device: Device
    half: np.dtype[Any]
    rows: tuple[int, ...] = ()
    num_slots: int | None = None

    def bucket(self, count: int) -> int:
        """Return the number of rows of the graph that serves `count` rows; raise `ConfigError` if none does."""
        if not self.rows:
            return row_bucket(count)
        if count > self.rows[-1]:
            raise ConfigError(
                f"a step of {count} rows does not fit {self.device.name}: its graphs have {self.rows[-1]} at most. "
                "Fewer branches or a shorter window do"
            )
        return self.rows[bisect_left(self.rows, count)]

    def require(self, plan: Preparation) -> None:
        """Raise `ConfigError` for a sequence that exceeds the limits."""
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

    Without bfloat16, OpenVINO computes in float32 and rounds keys only when they leave a call: rows of one call would
    see each other's keys in float32, but rows of the next call rounded keys.
    """
    from runtime.backends.openvino.library import new_core

    return has_vnni() and "BF16" in new_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
