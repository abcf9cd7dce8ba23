"""Keys and values of sequences and branches in memory that captured calls read and write.

The keys and values of all layers lie in one tensor that has room for the longest sequence so far. A call looks at the
first so many positions, so nothing moves when a sequence grows; where the memory itself must grow, the calls that were
captured on it are forgotten. Shapes: legend of `runtime.models.decoder`, plus L layers, S KV positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from decoding.errors import LaneError, MemoryFitError
from runtime.backends.cuda.captured_calls import CapturedSegment, CapturedShape
from runtime.backends.cuda.static_sizes import SPARE, slot_bucket, text_bucket
from runtime.backends.static_sequences import StaticBranches, StaticRows
from runtime.models.config import ModelConfig


class CapturedMemory:
    """Slots of some texts."""

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, 2, num_texts, config.num_kv_heads, 0, config.head_dim)
        self.slots = torch.zeros(shape, dtype=dtype, device=device)
        self.calls: dict[CapturedShape, CapturedSegment] = {}

    @property
    def num_slots(self) -> int:
        """Slots that a text can have, those not counted that are spare."""
        return max(0, self.slots.shape[4] - SPARE)

    def start(self, num_slots: int) -> None:
        """See `StaticMemory`."""
        self.allocate(num_slots)
        self.clear()

    @torch.inference_mode()
    def start_random(self, num_slots: int) -> None:
        """See `StaticMemory`."""
        self.allocate(num_slots)
        own = torch.randn(self.slots.shape[-1], generator=torch.Generator().manual_seed(0))
        self.slots.copy_(own.to(self.slots))

    def reserve(self, num_slots: int, *, num_kept: int = 0) -> None:  # noqa: ARG002  all are kept
        """Refuse a sequence that needs more KV positions than were allocated.

        Raises:
            LaneError: says how many it needs and how many there are.
        """
        if num_slots > self.num_slots:
            raise LaneError(f"a sequence needs {num_slots} KV positions, and {self.num_slots} were reserved for it")

    @torch.inference_mode()
    def allocate(self, num_slots: int) -> None:
        """Have so many slots for every text; what they held is lost if there were fewer.

        Raises:
            MemoryFitError: the device has no room for them.
        """
        if num_slots <= self.num_slots:
            return
        size, slots = slot_bucket(num_slots), self.slots
        shape = (*slots.shape[:4], size, slots.shape[5])
        num_bytes = slots[..., :1, :].new_empty(0).itemsize * torch.Size(shape).numel()
        self.calls.clear()
        self.slots = slots[..., :0, :].clone()
        wanted = f"keys and values of {shape[2]} sequences of {size} positions ({num_bytes / 1e9:.3f} GB)"
        with fitting(wanted, slots.device):
            self.slots = torch.empty(shape, dtype=slots.dtype, device=slots.device)
            self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Write zeros: hidden slots have no share, but zero times what is no number is none."""
        self.slots.zero_()


class CapturedBranches(StaticBranches):
    """Implements `runtime.backends.backend.Branches`.

    There is memory for as many sequences as a call over all of them has. A branch that a call fills up with writes to
    the last position that the call looks at, which is no sequence's then.
    """

    memory: CapturedMemory

    def __init__(self, config: ModelConfig, num_branches: int, dtype: torch.dtype, device: torch.device) -> None:
        num_texts = text_bucket(num_branches) if num_branches else 0
        super().__init__(CapturedMemory(config, num_texts, dtype, device), num_branches)

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> StaticRows:
        """Return where the next row of some branches goes: at this place in its sequence."""
        places_R1 = torch.tensor(positions_RT)
        assert places_R1.shape[1] == 1, "a branch has one row in a call"
        self.memory.reserve(int(places_R1.max()) + 1)
        return StaticRows(BranchesFrom(self.memory, branches.start or 0), places_R1)


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
