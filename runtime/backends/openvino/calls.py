"""Compiled graphs that are called again and again, and the memory that calls of one size read and write."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runtime.backends.openvino.graph import ANY, COS, MASK, OUT, PLACES, SIN, SegmentShape, X, key_name
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.texts import Rows, Slots
from runtime.models.config import ModelConfig


class RowInputs:
    """Memory of calls over so many texts, rows and slots: all segments of such a call use the same."""

    def __init__(self, config: ModelConfig, num_texts: int, num_rows: int, num_slots: int) -> None:
        self.size = num_texts, num_rows, num_slots
        num_kv, size = config.num_kv_heads, config.head_dim
        shapes = {
            X: (num_texts, num_rows, config.hidden_size),
            COS: (num_texts, 1, num_rows, size),
            SIN: (num_texts, 1, num_rows, size),
            MASK: (num_texts, 1, num_rows, num_slots),
            OUT: (num_texts, num_rows, config.hidden_size),
        }
        memory = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.x, self.out, self._mask = memory[X], memory[OUT], memory[MASK][:, 0]
        self._rotation = memory[COS][:, 0], memory[SIN][:, 0]
        places = np.zeros((num_texts, num_kv, num_rows, 3), np.int32)
        places[..., 0] = np.arange(num_texts)[:, None, None]
        places[..., 1] = np.arange(num_kv)[:, None]
        # rows that fill up write to the last slot, which no text uses
        places[..., 2] = num_slots - 1
        self._places = places[..., 2]
        self.tensors = {name: ov.Tensor(own, shared_memory=True) for name, own in (memory | {PLACES: places}).items()}

    def fill(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor], rows: Rows) -> None:
        """Put rows of some texts in, fewer than there is memory for or as many."""
        num_texts, num_rows, _ = x_BTD.shape
        self.x[:num_texts, :num_rows] = x_BTD.float().numpy()
        for given, own in zip(rotation, self._rotation, strict=True):
            own[:num_texts, :num_rows] = given.float().numpy()
        self._mask[:num_texts, :num_rows] = rows.mask
        self._places[...] = self.size[-1] - 1
        self._places[:num_texts, :, :num_rows] = rows.places[:, None]


class SegmentCall:
    """Layers over the rows of some texts."""

    def __init__(self, compiled: ov.CompiledModel, shape: SegmentShape, key_type: ov.Type) -> None:
        self._request = compiled.create_infer_request()
        self._shape, self._type = shape, key_type
        self._inputs: RowInputs | None = None
        self._bound: tuple[Slots, int, int] | None = None

    def __call__(self, inputs: RowInputs, rows: Rows) -> None:
        """From `inputs.x` to `inputs.out`."""
        if self._inputs is not inputs:
            for name, tensor in inputs.tensors.items():
                self._request.set_tensor(name, tensor)
            self._inputs = inputs
        self._bind(rows, inputs.size[0])
        _run(self._request)

    def _bind(self, rows: Rows, num_texts: int) -> None:
        """Tell the graph where the keys of these texts are."""
        bound = self._bound
        if bound is not None and bound[0] is rows.slots and bound[1:] == (rows.first, num_texts):
            return
        texts = slice(rows.first, rows.first + num_texts)
        for layer in range(self._shape.start, self._shape.stop):
            for part in (0, 1):
                memory = rows.slots[layer, part, texts]
                tensor = ov.Tensor(memory, ov.Shape(list(memory.shape)), self._type)
                self._request.set_tensor(key_name(layer, part), tensor)
                self._request.set_tensor(key_name(layer, part, updated=True), tensor)
        self._bound = rows.slots, rows.first, num_texts


class HeadCall:
    """Logits of some rows."""

    def __init__(self, compiled: ov.CompiledModel, num_outputs: int, hidden_size: int) -> None:
        self._request = compiled.create_infer_request()
        self._sizes = hidden_size, num_outputs
        self._memory: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._bound = ANY

    def __call__(self, x_TD: Tensor, num_rows: int) -> Tensor:
        """Logits [T, V] in float32, computed by a call of so many rows."""
        x, out = self._bind(num_rows)
        x[: len(x_TD)] = x_TD.float().numpy()
        _run(self._request)
        return torch.from_numpy(out[: len(x_TD)].copy())

    def _bind(self, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        if num_rows not in self._memory:
            x, out = (np.zeros((num_rows, size), np.float32) for size in self._sizes)
            self._memory[num_rows] = x, out
        if self._bound != num_rows:
            for name, memory in zip((X, OUT), self._memory[num_rows], strict=True):
                self._request.set_tensor(name, ov.Tensor(memory, shared_memory=True))
            self._bound = num_rows
        return self._memory[num_rows]


def _run(request: ov.InferRequest) -> None:
    request.start_async()
    request.wait()
