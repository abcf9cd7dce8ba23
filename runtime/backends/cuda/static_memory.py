"""Keys and values of sequences and branches in memory that captured calls read and write.

The keys and values of all layers lie in one tensor that has room for the longest sequence so far. A call looks at the
first so many positions, so nothing moves when a sequence grows; where the memory itself must grow, the calls that were
captured on it are forgotten. Shapes: legend of `runtime.models.decoder`, plus L layers, S KV positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from decoding.errors import MemoryFitError
from runtime.backends.cuda.captured_calls import CapturedSegment, CapturedShape
from runtime.backends.cuda.static_sizes import SPARE, slot_bucket, text_bucket
from runtime.backends.sequences import Branches, BranchRows
from runtime.models.config import ModelConfig
from runtime.models.kv_cache import TorchMemory


class CapturedMemory(TorchMemory):
    """Slots of some texts, and the calls that were captured on them."""

    spare = SPARE

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, num_texts, dtype, device)
        self.calls: dict[CapturedShape, CapturedSegment] = {}

    @torch.inference_mode()
    def allocate(self, num_slots: int) -> None:
        """See `TorchMemory`.

        Raises:
            MemoryFitError: the device has no room for them.
        """
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
    """Implements `runtime.backends.backend.Branches`.

    There is memory for as many sequences as a call over all of them has. A branch that a call fills up with writes to
    the last position that the call looks at, which is no sequence's then.
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
    """Say in numbers what a device had no room for.

    Raises:
        MemoryFitError: in place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryFitError(f"{device} has no room for {what}{_in_numbers(device)}") from error


def _in_numbers(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f": {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
