"""Calls of layers that are captured as CUDA graphs over static memory, and their sizes.

A call looks at the first slots of one tensor, so nothing moves when a sequence grows; when the tensor itself must grow,
the calls captured on it are dropped. A row's slot determines the number of slots over which it is computed, so its sums
have the same order in any call. Padding rows write to spare slots. On the CPU the function is called without capture.
Shapes: legend of `runtime.models.decoder`; L layers, S slots.
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
from runtime.backends.kv_memory import BranchCaches, BranchRows, Segment
from runtime.backends.lane_device import CAPTURED_ROWS, Device
from runtime.garbage_collection import no_collection
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import TorchMemory
from runtime.models.row_invariance import LayerKeys, RowPiece, Sight, mask_for_groups

new_event: Final[Callable[..., torch.cuda.Event]] = torch.cuda.Event
new_stream: Final[Callable[..., torch.cuda.Stream]] = torch.cuda.Stream
"""Aliases with types, which torch does not declare."""

Replay = Callable[[], object]
"""Runs a captured function again, on the current contents of its buffers."""
Numbers = NDArray[np.int64]


class GraphCapture:
    """Captures functions that only read and write buffers: they keep no new memory and read no value on the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
            # a pool takes no further graphs once all its graphs are gone, so this one stays
            number = torch.zeros(1, device=device)
            self._first = self.captured(lambda: number.add_(1))

    def captured(self, run: Replay) -> Replay:
        """Return the function as a graph; on a GPU it is also run."""
        if self.device.type != "cuda":
            return run
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), no_collection():
            warm_up = new_stream(self.device)
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                run()  # libraries choose kernels and allocate memory, which is not allowed during the capture
            torch.cuda.current_stream().wait_stream(warm_up)
            # graphs can share a pool's memory, as they run one after another and keep nothing in it
            with torch.cuda.graph(graph, pool=self._pool):
                run()
        return graph.replay


@contextmanager
def fitting(what: str, device: torch.device) -> Iterator[None]:
    """Turn torch's error that a device is out of memory into `MemoryFitError`, with the free memory."""
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
"""Slots after the last row of a call, for padding rows."""
GPU: Final = Device.of_lane("cuda:0")
"""A GPU; `num_slots` and `slot_sizes` are the same for all GPUs."""


def row_bucket(num_rows: int) -> int:
    """Return the number of rows of the call for `num_rows`, which is at most `ROWS[-1]`."""
    return ROWS[bisect_left(ROWS, num_rows)]


def text_bucket(num_texts: int) -> int:
    """Return the number of texts of the call for `num_texts`; above the largest of `TEXTS`, a multiple of it."""
    most = TEXTS[-1]
    return TEXTS[bisect_left(TEXTS, num_texts)] if num_texts <= most else num_texts + -num_texts % most


def text_buckets(most: int) -> tuple[int, ...]:
    """Return the numbers of texts of the calls for up to `most` texts."""
    return tuple(sorted({count for count in TEXTS if count < most} | {text_bucket(most)}))


def prompt_calls(num_rows: int) -> set[tuple[int, int]]:
    """Return (rows, slots) of the calls that read a prompt of `num_rows` rows."""
    return {
        (row_bucket(stop - start), GPU.num_slots(first + stop))
        for first, last in prefill_pieces(num_rows)
        for start, stop in pieces(first, last - first)
    }


def pieces(first: int, num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the calls over consecutive rows of a text, the first of which has slot `first`."""
    start = 0
    while start < num_rows:
        seen = GPU.num_slots(first + start + 1)
        stop = min(num_rows, start + ROWS[-1], seen - SPARE - first)
        yield start, stop
        start = stop


class CallShape(NamedTuple):
    """The size of a call: its layers, texts, rows of each text, and slots that they look at."""

    segment: Segment
    num_texts: int
    num_rows: int
    num_slots: int


class CapturedMemory(TorchMemory):
    """The memory of some texts, and the calls that were captured on it."""

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
    """The KV caches of branches, with memory for as many texts as a call over all branches has.

    Padding rows write to the last slot that the call looks at. The branches of the call's rows have not reached it, and
    the back end restores it for longer branches.
    """

    memory: CapturedMemory

    def rows(self, branches: slice, positions_RT: Sequence[Sequence[int]]) -> BranchRows:
        """See `BranchCaches`; each branch has one row."""
        places_R1 = np.array(positions_RT)
        assert places_R1.shape[1] == 1, "a branch has one row in a call"
        self.memory.reserve(int(places_R1.max()) + 1)
        return BranchRows((self.memory, branches.start or 0), places_R1)


class CapturedCall(LayerKeys):
    """A captured call of layers, on static inputs; `replay` is the captured `run`.

    The inputs are hidden states, positions, the slots of the rows (each sees the slots up to its own) and an additive
    mask. Hidden states of padding rows are left over from earlier calls, and finite.
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
        self.places_BT.fill_(num_slots - 1)  # the capture runs the call, and no text uses this slot

        self._decoder, self._segment, self._positions_BT = decoder, shape.segment, positions_BT
        self.replay = capture.captured(self.run)

    def run(self) -> None:
        """Compute the static output from the static inputs."""
        x_BTD = self._decoder.run_layers(
            self._x_BTD, *self._segment, positions=self._positions_BT, mask=self._mask_B1TS, cache=self
        )
        self._out_BTD.copy_(x_BTD)

    def __call__(self, x_BTD: Tensor, numbers_2BT: Numbers, mask_TS: Tensor | None = None) -> Tensor:
        """Return the hidden states of the texts and rows in `x_BTD`, which may be fewer than the call has.

        They are in new memory. `numbers_2BT` are positions and slots of all rows. Each row sees its text up to its
        slot, unless the additive mask over the first slots hides some.
        """
        if self._is_masked:
            self._mask_B1TS.zero_()
        self._is_masked = mask_TS is not None
        if mask_TS is not None:
            num_rows, num_slots = mask_TS.shape
            self._mask_B1TS[0, 0, :num_rows, :num_slots] = mask_TS.clamp(min=HIDDEN).to(self._mask_B1TS)
        used = slice(x_BTD.shape[0]), slice(x_BTD.shape[1])
        self._x_BTD[used] = x_BTD
        self._numbers.copy_(torch.from_numpy(numbers_2BT))
        self.replay()
        return self._out_BTD[used].clone()

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer in all slots of the call, [B, K, S, H] each."""
        keys, values = self._slots[layer]
        return keys, values

    def write(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows at their slots; return all slots of the call."""
        keys, values = self.slots(layer)
        index_BKTH = self.places_BT[:, None, :, None].expand_as(k_BKTH)
        return keys.scatter_(2, index_BKTH, k_BKTH), values.scatter_(2, index_BKTH, v_BKTH)

    def sight(self, mask: Tensor | None, num_rows: int, num_queries_per_kv: int) -> Sight:  # noqa: ARG002
        """Return what rows see: the slots up to their own, unless masked."""
        assert mask is not None, "a call without its mask"
        is_later_B1TS = self._slot_ids_S > self.places_BT[:, None, :, None]
        seen = mask_for_groups(mask.masked_fill(is_later_B1TS, HIDDEN), num_queries_per_kv)
        num_kv_heads, num_slots = self._slots.shape[3:5]
        if is_split(num_slots):
            return (SplitPiece(slice(None), None, mask_of_chunks(seen, num_kv_heads)),)
        return (RowPiece(slice(None), None, seen),)


class CapturedHead:
    """A captured call of the output head for a number of rows, on static inputs."""

    def __init__(self, decoder: Decoder, num_rows: int, capture: GraphCapture) -> None:
        weight_VD = decoder.lm_head.weight
        self._x_RD = weight_VD.new_zeros(num_rows, weight_VD.shape[1])
        self._out_RV = weight_VD.new_zeros(num_rows, weight_VD.shape[0])
        self._replay = capture.captured(lambda: self._out_RV.copy_(decoder.logits(self._x_RD)))

    def __call__(self, x_RD: Tensor) -> Tensor:
        """Return the logits of the rows in `x_RD`, which may be fewer than the call has, in new memory."""
        used = slice(len(x_RD))
        self._x_RD[used] = x_RD
        self._replay()
        return self._out_RV[used].clone()
