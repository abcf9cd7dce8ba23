"""Keys and values in memory that captured calls read and write, and the sizes of such calls.

One tensor has room for the longest sequence so far. A call looks at the first so many slots, so nothing moves when a
sequence grows; where the memory itself must grow, the calls captured on it are forgotten. How many slots a row sees is
settled by its own slot alone, so that its sums pair up in the same way in any call. Rows that fill a call up write to
spare slots after the text. Shapes: legend of `runtime.models.decoder`, plus L layers, S slots.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch

from decoding.errors import MemoryFitError
from runtime.backends.cuda.captured_calls import CapturedSegment, CapturedShape
from runtime.backends.sequences import Branches, BranchRows
from runtime.models.config import ModelConfig
from runtime.models.kv_cache import TorchMemory

ROWS: Final = (8, 16, 32, 64, 128)
"""Rows of one text in a call: as long as weights bound a step, 8 rows cost what 1 does."""
TEXTS: Final = (1, 2, 4, 8, 16, 32, 64)
SPARE: Final = ROWS[-1]
"""Slots after the last row of a call that are there to be written."""
_LEAST_SLOTS: Final = 256


def row_bucket(num_rows: int) -> int:
    """Rows of the call that serves so many, which are at most `ROWS[-1]`."""
    return ROWS[bisect_left(ROWS, num_rows)]


def text_bucket(num_texts: int) -> int:
    """Texts of the call that serves so many: beyond the largest size a multiple of it."""
    most = TEXTS[-1]
    return TEXTS[bisect_left(TEXTS, num_texts)] if num_texts <= most else num_texts + -num_texts % most


def slot_bucket(num_slots: int) -> int:
    """Slots that a text of so many has, or its last row looks at: 256, 384, 512, 768, 1024, ..."""
    size = _LEAST_SLOTS
    while size < num_slots + SPARE:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def slot_buckets(num_slots: int) -> tuple[int, ...]:
    """All that a text passes through until it has so many slots."""
    sizes = [slot_bucket(0)]
    while sizes[-1] < slot_bucket(num_slots):
        sizes.append(slot_bucket(sizes[-1] - SPARE + 1))
    return tuple(sizes)


def pieces(first: int, num_rows: int) -> Iterator[tuple[int, int]]:
    """Start and stop of calls over rows of a text in its order, whose first goes to slot `first`."""
    start = 0
    while start < num_rows:
        seen = slot_bucket(first + start + 1)
        stop = min(num_rows, start + ROWS[-1], seen - SPARE - first)
        yield start, stop
        start = stop


class CapturedMemory(TorchMemory):
    """Slots of some texts, and the calls that were captured on them."""

    spare = SPARE

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, num_texts, dtype, device)
        self.calls: dict[CapturedShape, CapturedSegment] = {}

    @torch.inference_mode()
    def allocate(self, num_slots: int) -> None:
        """See `TorchMemory`; raises `MemoryFitError` if the device has no room."""
        if num_slots > self.num_slots:
            self.calls.clear()
            size, num_texts = self._size(num_slots), self.slots.shape[2]
            num_bytes = self.slots.itemsize * math.prod(self.slots.shape[:4]) * size * self.slots.shape[5]
            wanted = f"keys and values of {num_texts} sequences of {size} positions ({num_bytes / 1e9:.3f} GB)"
            with fitting(wanted, self.slots.device):
                super().allocate(num_slots)

    def _size(self, num_slots: int) -> int:
        return slot_bucket(num_slots)


class CapturedBranches(Branches):
    """Branches in memory for as many sequences as a call over all of them has.

    A branch that a call fills up with writes to the last slot that the call looks at, which is no sequence's then.
    """

    memory: CapturedMemory

    def __init__(self, config: ModelConfig, num_branches: int, dtype: torch.dtype, device: torch.device) -> None:
        num_texts = text_bucket(num_branches) if num_branches else 0
        super().__init__(CapturedMemory(config, num_texts, dtype, device), num_branches)

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """Return where the next row of some branches goes: at this place in its sequence."""
        places_R1 = torch.tensor(positions_RT)
        assert places_R1.shape[1] == 1, "a branch has one row in a call"
        self.memory.reserve(int(places_R1.max()) + 1)
        return BranchRows(BranchesFrom(self.memory, branches.start or 0), places_R1)


class BranchesFrom(NamedTuple):
    """The memory of branches, and the first of them that a call is over."""

    memory: CapturedMemory
    first: int


@contextmanager
def fitting(what: str, device: torch.device) -> Iterator[None]:
    """Raise `MemoryFitError`, with numbers, in place of torch's error where a device has no room for something."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryFitError(f"{device} has no room for {what}{_in_numbers(device)}") from error


def _in_numbers(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f": {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
