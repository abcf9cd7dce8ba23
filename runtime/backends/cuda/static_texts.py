"""Texts and branches of them in memory that captured calls read and write.

The keys and values of all layers lie in one tensor that has slots for the longest text so far. A call looks at the
first so many of them, so nothing moves when a text grows; where the memory itself must grow, the calls that were
captured on it are forgotten. Shapes: legend of `runtime.models.decoder`, plus L layers, S slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.errors import LaneError, MemoryFitError
from runtime.backends.cuda.captured_calls import SegmentCall, SegmentShape
from runtime.backends.cuda.static_sizes import SPARE, slot_bucket, text_bucket
from runtime.models.config import ModelConfig


class TextMemory:
    """Slots of some texts."""

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, 2, num_texts, config.num_kv_heads, 0, config.head_dim)
        self.slots_L2BKSH = torch.zeros(shape, dtype=dtype, device=device)
        self.calls: dict[SegmentShape, SegmentCall] = {}

    @property
    def num_slots(self) -> int:
        """Slots that a text can have, those not counted that are spare."""
        return max(0, self.slots_L2BKSH.shape[4] - SPARE)

    @torch.inference_mode()
    def reserve(self, num_slots: int) -> None:
        """Have so many slots for every text; what they held is lost if there were fewer.

        Raises:
            MemoryFitError: the device has no room for them.
        """
        if num_slots <= self.num_slots:
            return
        size, slots = slot_bucket(num_slots), self.slots_L2BKSH
        shape = (*slots.shape[:4], size, slots.shape[5])
        num_bytes = slots[..., :1, :].new_empty(0).itemsize * torch.Size(shape).numel()
        self.calls.clear()
        self.slots_L2BKSH = slots[..., :0, :].clone()
        with fitting(f"keys and values of {shape[2]} texts of {size} slots ({num_bytes / 1e9:.3f} GB)", slots.device):
            self.slots_L2BKSH = torch.empty(shape, dtype=slots.dtype, device=slots.device)
            self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Write zeros: hidden slots have no share, but zero times what is no number is none."""
        self.slots_L2BKSH.zero_()

    def require(self, num_slots: int) -> None:
        """Refuse a text that needs more slots than were reserved.

        Raises:
            LaneError: says how many it needs and how many there are.
        """
        if num_slots > self.num_slots:
            raise LaneError(f"a text needs {num_slots} slots, and {self.num_slots} were reserved for it")

    @torch.inference_mode()
    def fill_random(self) -> None:
        """Every slot, the same in all."""
        own = torch.randn(self.slots_L2BKSH.shape[-1], generator=torch.Generator().manual_seed(0))
        self.slots_L2BKSH.copy_(own.to(self.slots_L2BKSH))


class StaticText:
    """Implements `runtime.backends.backend.Text`."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.memory = TextMemory(config, 1, dtype, device)
        self.cursor = 0

    def start(self, num_slots: int) -> None:
        """Begin a text that will need so many slots."""
        self.memory.reserve(num_slots)
        self.memory.clear()
        self.cursor = 0

    def advance(self, num_rows: int) -> None:
        """Keep the rows just written."""
        self.set_length(self.cursor + num_rows)

    def set_length(self, length: int) -> None:
        """Keep the first so many slots; raises `LaneError` where there are not so many."""
        self.memory.require(length)
        self.cursor = length

    @torch.inference_mode()
    def gather(self, slots: list[int], destination: int) -> None:
        """Move slots; the cursor is after them then."""
        stop = destination + len(slots)
        self.memory.require(stop)
        if slots != list(range(destination, stop)):
            own = self.memory.slots_L2BKSH
            own[..., destination:stop, :] = own.index_select(4, torch.tensor(slots, device=own.device))
        self.cursor = stop

    def fill_random(self, length: int) -> None:
        """Random keys and values, `length` slots of them to be seen."""
        self.memory.reserve(length)
        self.memory.fill_random()
        self.cursor = length


class StaticBranches:
    """Implements `runtime.backends.backend.Branches`.

    There is memory for as many texts as a call over all of them has. A branch that a call fills up with writes to the
    last slot that the call looks at, which is no text's then.
    """

    def __init__(self, config: ModelConfig, num_branches: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_branches = num_branches
        num_texts = text_bucket(num_branches) if num_branches else 0
        self.memory = TextMemory(config, num_texts, dtype, device)
        self._num_copied = 0

    def start(self, num_slots: int) -> None:
        """Begin a text that will need so many slots."""
        if self.num_branches:
            self.memory.reserve(num_slots)
            self.memory.clear()
        self._num_copied = 0

    def follow(self, text: StaticText, *, num_final: int, stop: int) -> None:
        """Give every branch the slots of a text up to `stop`; the first `num_final` stay as they are."""
        self.copy(text, slice(None), self._num_copied, stop)
        self._num_copied = num_final

    @torch.inference_mode()
    def copy(self, text: StaticText, layers: slice, start: int, stop: int) -> None:
        """Give every branch some slots of a text, in some layers."""
        if not self.num_branches:
            return
        self.memory.require(stop)
        given = text.memory.slots_L2BKSH[layers, :, :, :, start:stop]
        self.memory.slots_L2BKSH[layers, :, :, :, start:stop] = given

    @torch.inference_mode()
    def give(self, branch: int, start: int, stop: int, text: StaticText) -> None:
        """Put slots of a branch into a text, at the same places."""
        text.memory.require(stop)
        own = self.memory.slots_L2BKSH[:, :, branch, :, start:stop]
        text.memory.slots_L2BKSH[:, :, 0, :, start:stop] = own

    def fill_random(self) -> None:
        """Random keys and values in every slot."""
        self.memory.fill_random()

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """Where the next row of some branches goes: at this place in its text."""
        places_R1 = torch.tensor(positions_RT)
        assert places_R1.shape[1] == 1, "a branch has one row in a call"
        self.memory.require(int(places_R1.max()) + 1)
        return BranchRows(self, branches.start or 0, places_R1)

    def after_window(self, text: StaticText, num_window: int, rows: BranchRows) -> WindowThenBranches:
        """The next rows of a text, and then a row of every branch, in one call."""
        return WindowThenBranches(text, num_window, rows)


class BranchRows(NamedTuple):
    """A row of each of some branches, and its rotary position: its place in the text."""

    branches: StaticBranches
    first: int
    positions_RT: Tensor


class WindowThenBranches(NamedTuple):
    """Rows of a text, and then one row of every branch."""

    text: StaticText
    num_window: int
    rows: BranchRows


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
