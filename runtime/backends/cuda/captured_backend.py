"""A decoder as captured calls on a GPU, or called directly on the CPU, its stand-in in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from runtime.backends.backend import Plan
from runtime.backends.cuda.capture import Download, GraphCapture, Upload, wait
from runtime.backends.cuda.captured_calls import CapturedInputs, CapturedSegment, CapturedShape, RowsCall
from runtime.backends.cuda.static_memory import (
    ROWS,
    CapturedBranches,
    CapturedMemory,
    fitting,
    pieces,
    row_bucket,
    slot_bucket,
    slot_buckets,
    text_bucket,
)
from runtime.backends.eager import ByTorch
from runtime.backends.sequences import BranchRows, Segment, StaticCalls, Text
from runtime.models.decoder import Decoder


class CudaBackend(StaticCalls, ByTorch):
    """Implements `runtime.backends.backend.Backend`; hidden states and logits are tensors of the device."""

    has_open_keys: bool = False
    least_rows: int = 1
    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (2, 3, 4, 3), (5, 7), (12,))

    def __init__(self, decoder: Decoder, *, device: str | torch.device) -> None:
        """Move the weights to the device (`cuda:0`, `cpu`); raise `MemoryFitError` if it has no room for them."""
        self.config, self.device = decoder.config, torch.device(device)
        num_bytes = sum(weight.nbytes for weight in decoder.parameters())
        with fitting(f"the weights ({num_bytes / 1e9:.3f} GB)", self.device):
            self._decoder = decoder.to(self.device)
        self.dtype = decoder.embedding.weight.dtype
        self._capture = GraphCapture(self.device)
        self._download = Download(self.device)
        self._inputs: dict[tuple[int, int], CapturedInputs] = {}
        self._ids: dict[int, Upload] = {}
        self._memories: WeakSet[CapturedMemory] = WeakSet()
        self._branches: WeakSet[CapturedBranches] = WeakSet()
        self._head = HeadCalls(decoder.logits, decoder.final_norm, self._capture)

    def new_text(self) -> Text:
        """Room for a text."""
        memory = CapturedMemory(self.config, 1, self.dtype, self.device)
        self._memories.add(memory)
        return Text(memory)

    def new_branches(self, num_branches: int) -> CapturedBranches:
        """Room for branches of a text."""
        branches = CapturedBranches(self.config, num_branches, self.dtype, self.device)
        self._branches.add(branches)
        return branches

    @torch.inference_mode()
    def prepare(self, plan: Plan) -> None:
        """Reserve slots and capture a sequence's calls for all texts there are; raise `MemoryFitError` without room."""
        sizes = [size for size in slot_buckets(plan.num_slots) if size >= slot_bucket(plan.least_slots)]
        with fitting("the calls of a sequence", self.device):
            for memory in self._memories:
                memory.allocate(plan.num_slots)
                for count in {row_bucket(min(rows, ROWS[-1])) for rows in plan.rows}:
                    self._load(memory, plan.segments, (1, count), sizes)
                if plan.prompt_segments:
                    for count in {ROWS[-1], row_bucket(min(plan.num_prompt, ROWS[-1]))}:
                        self._load(memory, plan.prompt_segments, (1, count), slot_buckets(plan.num_prompt))
            for branches in self._branches:
                if branches.num_branches and branches.num_branches == plan.num_branches:
                    branches.memory.allocate(plan.num_slots)
                    self._load(branches.memory, plan.segments, (text_bucket(plan.num_branches), 1), sizes)
            for rows in plan.rows:
                self._head.load(row_bucket(min(rows, ROWS[-1])))

    @torch.inference_mode()
    def embedding(self, ids: Any) -> Tensor:
        """Hidden states that enter the first layer, but for learned positions, which the layers add."""
        ids = torch.as_tensor(ids)
        if ids.numel() not in self._ids:
            self._ids[ids.numel()] = Upload((ids.numel(),), torch.long, self.device)
        own = self._ids[ids.numel()]
        own.send(ids.reshape(-1))
        return self._decoder.embedding(own.values).view(*ids.shape, self.config.hidden_size)  # type: ignore[no-any-return]

    def normalise(self, x: Tensor) -> Tensor:
        """The final norm alone."""
        return self._decoder.normalise(x)

    @torch.inference_mode()
    def logits(self, x_BTD: Tensor) -> Tensor:
        """Final norm and output head."""
        return self._head(x_BTD)

    def on_host(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Values of the device in memory of the host: one wait for all."""
        return self._download.fetch(*tensors)

    def wait(self) -> None:
        """Until everything asked for is done."""
        wait(self.device)

    def _run_text(self, x_BTD: Tensor, segment: Segment, positions: Any, mask: Any, text: Any) -> Tensor:
        positions, memory = torch.as_tensor(positions), text.memory
        mask = None if mask is None else torch.as_tensor(mask).to(self.dtype)
        num_rows, first = x_BTD.shape[1], text.cursor
        memory.reserve(first + num_rows)
        # rows of a tree see each other in no text's order, so they stay in one call
        cuts = [(0, num_rows)] if mask is not None and num_rows <= ROWS[-1] else list(pieces(first, num_rows))
        done = []
        for start, stop in cuts:
            count = row_bucket(stop - start)
            inputs = self._inputs_of(1, count)
            padded = torch.zeros(1, count, dtype=torch.long)
            padded[0, : stop - start] = positions[start:stop]
            block = None if mask is None else mask[start:stop, first + start : first + stop]
            places = torch.arange(first + start, first + start + count)[None]
            inputs.fill(x_BTD[:, start:stop], padded, places, block)
            shape = CapturedShape(*segment, 1, count, slot_bucket(first + stop))
            done.append(self._call(memory, shape)(1, stop - start))
        return done[0] if len(done) == 1 else torch.cat(done, dim=1)

    def _run_branches(self, x_R1D: Tensor, segment: Segment, _: Any, rows: BranchRows) -> Tensor:
        """One call for every number of slots that a row of theirs looks at: seldom more than one."""
        places_R, (memory, first) = rows.positions_RT[:, 0], rows.call
        sizes = [slot_bucket(place + 1) for place in places_R.tolist()]
        count = text_bucket(first + len(places_R))
        inputs, out_R1D = self._inputs_of(count, 1), torch.empty_like(x_R1D)
        own = slice(first, first + len(places_R))
        for size in sorted(set(sizes)):
            is_own = torch.tensor([other == size for other in sizes])
            places = torch.full((count, 1), size - 1)
            places[own, 0] = torch.where(is_own, places_R, size - 1)
            positions = torch.zeros_like(places)
            positions[own, 0] = torch.where(is_own, places_R, 0)
            x_B1D = inputs.x_BTD.clone()
            x_B1D[own] = x_R1D
            inputs.fill(x_B1D, positions, places)
            found = self._call(memory, CapturedShape(*segment, count, 1, size))(count, 1)[own]
            if is_own.all():
                return found
            is_here = is_own.to(self.device)[:, None, None]
            out_R1D = torch.where(is_here, found, out_R1D)
        return out_R1D

    def _load(self, memory: CapturedMemory, segments: tuple[Segment, ...], counts: tuple[int, int], sizes: Any) -> None:
        for segment in segments:
            for size in sizes:
                self._inputs_of(*counts).restart()
                self._call(memory, CapturedShape(*segment, *counts, size))

    def _call(self, memory: CapturedMemory, shape: CapturedShape) -> CapturedSegment:
        if shape not in memory.calls:
            inputs = self._inputs_of(shape.num_texts, shape.num_rows)
            with fitting(f"a call of {shape.num_rows} rows over {shape.num_slots} KV positions", self.device):
                memory.calls[shape] = CapturedSegment(self._decoder, shape, inputs, memory.slots, self._capture)
        return memory.calls[shape]

    def _inputs_of(self, num_texts: int, num_rows: int) -> CapturedInputs:
        key = num_texts, num_rows
        if key not in self._inputs:
            self._inputs[key] = CapturedInputs(*key, self.config.hidden_size, self.dtype, self.device)
        return self._inputs[key]


class HeadCalls:
    """A head by its numbers of rows."""

    def __init__(self, compute: Callable[[Tensor], Tensor], like_D: Tensor, capture: GraphCapture) -> None:
        self._compute, self._like_D, self._capture = compute, like_D, capture
        self._calls: dict[int, RowsCall] = {}

    def load(self, num_rows: int) -> RowsCall:
        """The call of so many rows."""
        if num_rows not in self._calls:
            self._calls[num_rows] = RowsCall(self._compute, num_rows, self._like_D, self._capture)
        return self._calls[num_rows]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., D]."""
        flat = x.reshape(-1, x.shape[-1])
        parts = [flat[start : start + ROWS[-1]] for start in range(0, len(flat), ROWS[-1])]
        found = [self.load(row_bucket(len(part)))(part) for part in parts]
        return (found[0] if len(found) == 1 else torch.cat(found)).view(*x.shape[:-1], -1)
