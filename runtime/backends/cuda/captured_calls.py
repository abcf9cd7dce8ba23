"""Layers over rows whose keys lie in static memory, captured once; and the sizes that such calls have.

A call looks at the first slots of one tensor, so nothing moves when a sequence grows; where the memory itself must
grow, the calls captured on it are dropped. A row's own slot says how many it sees, so its sums pair up in the same way
in any call. Rows that fill a call up write to spare slots. On the CPU the function itself is called.
Shapes: legend of `runtime.models.decoder`, plus L layers, S slots.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.errors import MemoryFitError
from runtime.backends.backend import prefill_pieces
from runtime.backends.cuda.split_attention import HIDDEN, SplitPiece, is_split, mask_of_chunks
from runtime.backends.lane_device import CAPTURED_ROWS, Device
from runtime.backends.sequences import BranchCaches, BranchRows, Segment
from runtime.garbage import no_collection
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import TorchMemory
from runtime.models.row_invariance import LayerKeys, RowPiece, Sight, mask_for_groups

new_event: Final[Callable[..., torch.cuda.Event]] = torch.cuda.Event
new_stream: Final[Callable[..., torch.cuda.Stream]] = torch.cuda.Stream
"""torch leaves their types open."""

Replay = Callable[[], object]
"""Runs once more on what the buffers hold now."""
Numbers = NDArray[np.int64]


class GraphCapture:
    """Captures functions that allocate nothing they leave behind, read no value on the host, and write buffers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
            # a pool whose graphs are all gone takes no further ones, so this one stays
            number = torch.zeros(1, device=device)
            self._first = self.captured(lambda: number.add_(1))

    def captured(self, run: Replay) -> Replay:
        """Return the function as a graph; it runs once on what the buffers hold."""
        if self.device.type != "cuda":
            return run
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), no_collection():
            warm_up = new_stream(self.device)
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                run()  # libraries choose kernels and allocate, which a capture must not
            torch.cuda.current_stream().wait_stream(warm_up)
            # graphs of one pool share memory: they run one after the other, and leave nothing in it
            with torch.cuda.graph(graph, pool=self._pool):
                run()
        return graph.replay


@contextmanager
def fitting(what: str, device: torch.device) -> Iterator[None]:
    """Raise `MemoryFitError`, with numbers, in place of torch's error where a device has no room for something."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        numbers = ""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            numbers = f": {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
        raise MemoryFitError(f"{device} has no room for {what}{numbers}") from error


ROWS: Final = CAPTURED_ROWS
TEXTS: Final = (1, 2, 4, 8, 16, 32, 64)
SPARE: Final = ROWS[-1]
"""Slots after the last row of a call that are there to be written."""
GPU: Final = Device.of_lane("cuda:0")
"""Any GPU: their `num_slots` and `slot_sizes` are the same."""


def row_bucket(num_rows: int) -> int:
    """Return the rows of the call that serves so many, at most `ROWS[-1]`."""
    return ROWS[bisect_left(ROWS, num_rows)]


def text_bucket(num_texts: int) -> int:
    """Return the texts of the call that serves so many: beyond the largest size a multiple of it."""
    most = TEXTS[-1]
    return TEXTS[bisect_left(TEXTS, num_texts)] if num_texts <= most else num_texts + -num_texts % most


def text_buckets(most: int) -> tuple[int, ...]:
    """Return the numbers of texts of the calls that serve up to so many."""
    return tuple(sorted({count for count in TEXTS if count < most} | {text_bucket(most)}))


def prompt_calls(num_rows: int) -> set[tuple[int, int]]:
    """Return rows and slots of the calls that read a prompt of so many rows."""
    return {
        (row_bucket(stop - start), GPU.num_slots(first + stop))
        for first, last in prefill_pieces(num_rows)
        for start, stop in pieces(first, last - first)
    }


def pieces(first: int, num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of calls over rows of a text in its order, whose first goes to slot `first`."""
    start = 0
    while start < num_rows:
        seen = GPU.num_slots(first + start + 1)
        stop = min(num_rows, start + ROWS[-1], seen - SPARE - first)
        yield start, stop
        start = stop


class CallShape(NamedTuple):
    """Layers of a segment over the rows of some texts that look at so many slots."""

    segment: Segment
    num_texts: int
    num_rows: int
    num_slots: int


class CapturedMemory(TorchMemory):
    """Slots of some texts, and the calls that were captured on them."""

    spare = SPARE

    def __init__(self, config: ModelConfig, num_texts: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, num_texts, dtype, device)
        self.calls: dict[CallShape, CapturedCall] = {}

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
        return GPU.reserved_slots(num_slots)


class CapturedBranches(BranchCaches):
    """Branches in memory for as many sequences as a call over all of them has.

    A branch that pads a call writes to the last slot that the call looks at, which no sequence has reached then; the
    backend keeps what longer ones have there.
    """

    memory: CapturedMemory

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """Return where the next row of some branches goes: at this place in its sequence."""
        places_R1 = np.array(positions_RT)
        assert places_R1.shape[1] == 1, "a branch has one row in a call"
        self.memory.reserve(int(places_R1.max()) + 1)
        return BranchRows((self.memory, branches.start or 0), places_R1)


class CapturedCall(LayerKeys):
    """Layers over rows on inputs that stay where they are; `replay` is `run` as captured, and does not hold the call.

    The inputs are hidden states, positions, the slots that rows are written to, which settle what they see, and an
    additive mask that hides more. States of padding rows stay what they were, which is finite.
    """

    def __init__(self, decoder: Decoder, shape: CallShape, slots_L2BKSH: Tensor, capture: GraphCapture) -> None:
        _, num_texts, num_rows, num_slots = shape
        self._slots = slots_L2BKSH[:, :, :num_texts, :, :num_slots]
        self._x_BTD = slots_L2BKSH.new_zeros(num_texts, num_rows, decoder.config.hidden_size)
        self._mask_B1TS = slots_L2BKSH.new_zeros(num_texts, 1, num_rows, num_slots)
        self._is_masked = False
        self._slot_ids_S = torch.arange(num_slots, device=slots_L2BKSH.device)
        self._numbers = slots_L2BKSH.new_zeros((2, num_texts, num_rows), dtype=torch.long)
        self._out_BTD = torch.zeros_like(self._x_BTD)
        positions_BT, self.places_BT = self._numbers
        self.places_BT.fill_(num_slots - 1)  # a capture runs: no text has anything there

        self._decoder, self._segment, self._positions_BT = decoder, shape.segment, positions_BT
        self.replay = capture.captured(self.run)

    def run(self) -> None:
        """Compute the output of what the inputs hold now, and write it to where it stays."""
        x_BTD = self._decoder.run_layers(
            self._x_BTD, *self._segment, positions=self._positions_BT, mask=self._mask_B1TS, cache=self
        )
        self._out_BTD.copy_(x_BTD)

    def __call__(self, x_BTD: Tensor, numbers_2BT: Numbers, mask_TS: Tensor | None = None) -> Tensor:
        """Return the states of the first texts and rows, in memory of their own, of states of these.

        The numbers are positions and places of all rows: each sees its text up to its place, less what an additive mask
        over the first slots hides.
        """
        if self._is_masked:
            self._mask_B1TS.zero_()
        self._is_masked = mask_TS is not None
        if mask_TS is not None:
            num_rows, num_slots = mask_TS.shape
            self._mask_B1TS[0, 0, :num_rows, :num_slots] = mask_TS.clamp(min=HIDDEN).to(self._mask_B1TS)
        own = slice(x_BTD.shape[0]), slice(x_BTD.shape[1])
        self._x_BTD[own] = x_BTD
        self._numbers.copy_(torch.from_numpy(numbers_2BT))
        self.replay()
        return self._out_BTD[own].clone()

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer in all slots of the call, [B, K, S, H] each."""
        keys, values = self._slots[layer]
        return keys, values

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows at their places; return all slots of the call."""
        keys, values = self.slots(layer)
        index_BKTH = self.places_BT[:, None, :, None].expand_as(k_BKTH)
        return keys.scatter_(2, index_BKTH, k_BKTH), values.scatter_(2, index_BKTH, v_BKTH)

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Return what rows see: slots up to their own that the mask does not hide."""
        assert mask is not None, "a call without its mask"
        is_later_B1TS = self._slot_ids_S > self.places_BT[:, None, :, None]
        seen = mask_for_groups(mask.masked_fill(is_later_B1TS, HIDDEN), num_queries_per_kv)
        num_kv_heads, num_slots = self._slots.shape[3:5]
        if is_split(num_slots):
            return (SplitPiece(slice(None), None, mask_of_chunks(seen, num_kv_heads)),)
        return (RowPiece(slice(None), None, seen),)


class CapturedHead:
    """Logits of so many rows, captured once; on inputs that stay where they are."""

    def __init__(self, decoder: Decoder, num_rows: int, capture: GraphCapture) -> None:
        weight_VD = decoder.lm_head.weight
        self._x_RD = weight_VD.new_zeros(num_rows, weight_VD.shape[1])
        self._out_RV = weight_VD.new_zeros(num_rows, weight_VD.shape[0])
        self._replay = capture.captured(lambda: self._out_RV.copy_(decoder.logits(self._x_RD)))

    def __call__(self, x_RD: Tensor) -> Tensor:
        """Return the logits of the first rows, in memory of their own."""
        own = slice(len(x_RD))
        self._x_RD[own] = x_RD
        self._replay()
        return self._out_RV[own].clone()
