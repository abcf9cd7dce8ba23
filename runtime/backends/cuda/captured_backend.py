"""Implements the back end by CUDA graphs on a GPU; in tests the CPU calls the captured functions directly."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.backends.backend import Preparation, cut_at_states
from runtime.backends.cuda.captured_calls import (
    GPU,
    ROWS,
    CallShape,
    CapturedBranches,
    CapturedCall,
    CapturedHead,
    CapturedMemory,
    GraphCapture,
    Numbers,
    fitting,
    pieces,
    prompt_calls,
    row_bucket,
    text_bucket,
    text_buckets,
)
from runtime.backends.eager import TorchBackend
from runtime.backends.kv_memory import BranchRows, Segment, SequenceCache
from runtime.models.decoder import Decoder


class CudaBackend(TorchBackend):
    """Implements `Backend` by captured calls; hidden states and logits are tensors of the device."""

    self_test_fills = 250, 640
    """Rows after 640 filled slots look at 1,024, which another kernel reads (`split_attention`)."""

    def __init__(self, decoder: Decoder, *, device: str | torch.device) -> None:
        """Move the weights to the device (`cuda:0`, `cpu`); raise `MemoryFitError` if it has no room for them."""
        device, num_bytes = torch.device(device), sum(weight.nbytes for weight in decoder.parameters())
        with fitting(f"the weights ({num_bytes / 1e9:.3f} GB)", device):
            super().__init__(decoder.to(device))
        if device.type == "cuda":
            fuse_layers(decoder)
        self._capture = GraphCapture(device)
        self._memories: WeakSet[CapturedMemory] = WeakSet()
        self._heads: dict[int, CapturedHead] = {}

    def new_text(self) -> SequenceCache:
        """See `Backend`."""
        return SequenceCache(self._new_memory(1))

    def new_branches(self, num_branches: int) -> CapturedBranches:
        """See `Backend`."""
        return CapturedBranches(self._new_memory(text_bucket(num_branches) if num_branches else 0), num_branches)

    @torch.inference_mode()
    def prepare(self, plan: Preparation) -> None:
        """Reserve slots and capture a sequence's calls in all its memories; raise `MemoryFitError` without room."""
        plan = cut_at_states(plan)
        sizes = [size for size in GPU.slot_sizes(plan.num_slots) if size >= GPU.num_slots(plan.least_slots)]
        rows = {row_bucket(min(count, ROWS[-1])) for count in plan.rows}
        least = plan.num_branches if plan.least_branches is None else plan.least_branches
        texts = [count for count in text_buckets(plan.num_branches) if count >= text_bucket(least)]
        with fitting("the calls of a sequence", self.device):
            for memory in self._memories:
                num_texts = memory.slots.shape[2]
                if num_texts == 1:
                    memory.allocate(plan.num_slots)
                    self._load(memory, plan.segments, ((1, count, size) for count in rows for size in sizes))
                    self._load(memory, plan.prompt_segments, ((1, *call) for call in prompt_calls(plan.num_prompt - 1)))
                if plan.num_branches and num_texts == text_bucket(plan.num_branches):
                    memory.allocate(plan.num_slots)
                    self._load(memory, plan.segments, ((count, 1, size) for count in texts for size in sizes))

    @torch.inference_mode()
    def logits(self, x_BTD: Tensor) -> Tensor:
        """See `Backend`; computed by captured heads of a few sizes."""
        rows = x_BTD.reshape(-1, x_BTD.shape[-1])
        parts = [rows] if len(rows) <= ROWS[-1] else torch.split(rows, ROWS[-1])
        found = [self._head(row_bucket(len(part)))(part) for part in parts]
        return _joined(found, 0).view(*x_BTD.shape[:-1], -1)

    def _run_rows(self, x_BTD: Tensor, segment: Segment, positions: Any, mask: Any, cache: Any) -> Tensor:
        if isinstance(cache, BranchRows):
            return self._run_branches(x_BTD, segment, cache)
        return self._run_text(x_BTD, segment, np.asarray(positions), mask, cache)

    def _run_text(
        self, x_BTD: Tensor, segment: Segment, positions_T: Numbers, mask: Any, text: SequenceCache
    ) -> Tensor:
        num_rows, first, memory = x_BTD.shape[1], text.cursor, text.memory
        assert isinstance(memory, CapturedMemory), "a text of another back end"
        memory.reserve(first + num_rows)
        # rows of a tree are not in text order, so they stay in one call
        cuts = [(0, num_rows)] if mask is not None and num_rows <= ROWS[-1] else list(pieces(first, num_rows))
        done = []
        for start, stop in cuts:
            count, last = row_bucket(stop - start), first + stop
            numbers = np.zeros((2, 1, count), np.int64)
            numbers[0, 0, : stop - start] = positions_T[start:stop]
            numbers[1, 0] = range(first + start, first + start + count)
            mask_of_piece = None if mask is None else torch.as_tensor(mask)[start:stop, :last]
            call = self._call(memory, CallShape(segment, 1, count, GPU.num_slots(last)))
            done.append(call(x_BTD[:, start:stop], numbers, mask_of_piece))
        return _joined(done, 1)

    def _run_branches(self, x_R1D: Tensor, segment: Segment, rows: BranchRows) -> Tensor:
        """Run a call for each number of slots that a row looks at, mostly one."""
        places_R, (memory, first) = rows.positions_RT[:, 0], rows.call
        sizes = [GPU.num_slots(place + 1) for place in places_R.tolist()]
        count, stop = text_bucket(first + len(places_R)), first + len(places_R)
        x_B1D, out_R1D = F.pad(x_R1D, (0, 0, 0, 0, first, 0)) if first else x_R1D, None
        for size in sorted(set(sizes)):
            has_size = np.array(sizes) == size
            numbers = np.zeros((2, count, 1), np.int64)
            numbers[1] = size - 1  # the slot that padding writes to
            numbers[:, first:stop, 0] = np.where(has_size, places_R, numbers[:, first:stop, 0])
            call = self._call(memory, CallShape(segment, count, 1, size))
            with kept_slot(memory, first + np.flatnonzero(places_R >= size), size - 1):
                found = call(x_B1D, numbers)[first:]
            has_size_R11 = torch.from_numpy(has_size)[:, None, None]
            out_R1D = found if out_R1D is None else torch.where(has_size_R11.to(self.device), found, out_R1D)
        assert out_R1D is not None, "a call without rows"
        return out_R1D

    def _new_memory(self, num_texts: int) -> CapturedMemory:
        memory = CapturedMemory(self.config, num_texts, self.dtype, self.device)
        self._memories.add(memory)
        return memory

    def _load(
        self, memory: CapturedMemory, segments: tuple[Segment, ...], sizes: Iterable[tuple[int, int, int]]
    ) -> None:
        """Capture calls over segments, for sizes of (texts, rows, slots)."""
        for size in sizes:
            for segment in segments:
                self._call(memory, CallShape(segment, *size))

    def _head(self, num_rows: int) -> CapturedHead:
        if num_rows not in self._heads:
            with fitting(f"the output head of {num_rows} rows", self.device):
                self._heads[num_rows] = CapturedHead(self._decoder, num_rows, self._capture)
        return self._heads[num_rows]

    def _call(self, memory: CapturedMemory, shape: CallShape) -> CapturedCall:
        if shape not in memory.calls:
            with fitting(f"a call of {shape.num_rows} rows over {shape.num_slots} KV positions", self.device):
                memory.calls[shape] = CapturedCall(self._decoder, shape, memory.slots, self._capture)
        return memory.calls[shape]


@contextmanager
def kept_slot(memory: CapturedMemory, texts: Numbers, slot: int) -> Iterator[None]:
    """Restore a slot of some texts after the body, in which their padding rows overwrite it; longer texts need it."""
    if not len(texts):
        yield
        return
    index = torch.from_numpy(texts).to(memory.slots.device)
    kept = memory.slots[:, :, index, :, slot]
    yield
    memory.slots[:, :, index, :, slot] = kept


def fuse_layers(decoder: Decoder) -> None:
    """Use fused kernels for the layers, if Triton is installed, finds a C compiler and may write its files.

    Other errors, such as a full disk, are raised: without the kernels the same machine would compute other bits.
    """
    if find_spec("triton") is not None:
        from runtime.backends.cuda.fused_layers import fuse

        with suppress(RuntimeError, PermissionError, CalledProcessError):
            fuse(decoder)


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
