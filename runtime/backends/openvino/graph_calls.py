"""Calls of compiled graphs: the memory of their inputs and outputs, and requests that are bound to it."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.backends.openvino.graph import COS, MASK, OUT, PLACES, SIN, SegmentShape, X, key_name, state_name
from runtime.backends.openvino.kv_buffers import Buffer, CallRows
from runtime.backends.openvino.library import ov
from runtime.models.config import ModelConfig

Floats = NDArray[np.float32]
Rotation = tuple[Floats, Floats]
"""Cosines and sines of rows."""
_MOST_MEMORIES: Final = 4
"""Most buffers of keys for which a graph keeps requests; the least recently used is dropped."""


class RowInputs:
    """The inputs and the output of calls of one size (texts, rows and slots); all segments share them."""

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
        memory: dict[str, NDArray[Any]] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.x, self.out, self._mask = memory[X], memory[OUT], memory[MASK][:, 0]
        self._rotation = memory[COS][:, 0], memory[SIN][:, 0]
        places = np.zeros((num_texts, num_kv, num_rows, 3), np.int32)
        places[..., 0] = np.arange(num_texts)[:, None, None]
        places[..., 1] = np.arange(num_kv)[:, None]
        # padding rows write to the last slot, which no text uses
        places[..., 2] = num_slots - 1
        self._places = places[..., 2]
        memory[PLACES] = places
        self.tensors = {name: ov.Tensor(array, shared_memory=True) for name, array in memory.items()}
        self._states: dict[int, tuple[Floats, ov.Tensor]] = {}

    def state(self, layer: int) -> tuple[Floats, ov.Tensor]:
        """Return the memory of the hidden states after a layer, and its tensor."""
        if layer not in self._states:
            memory = np.zeros_like(self.out)
            self._states[layer] = memory, ov.Tensor(memory, shared_memory=True)
        return self._states[layer]

    def fill(self, x_BTD: Floats, rotation: Rotation, rows: CallRows) -> None:
        """Set the inputs to rows of some texts, at most as many as the size has, and pad the rest."""
        num_texts, num_rows, _ = x_BTD.shape
        self.x[:num_texts, :num_rows] = x_BTD
        # padding rows must be finite after a norm, which divides by their length
        self.x[num_texts:], self.x[:, num_rows:] = 1, 1
        for given, table in zip(rotation, self._rotation, strict=True):
            table[:num_texts, :num_rows] = given
        self._mask[:num_texts, :num_rows] = rows.mask
        self._places[...] = self.size[-1] - 1
        self._places[:num_texts, :, :num_rows] = rows.places[:, None]


class SegmentCall:
    """A compiled graph of some layers, with its requests.

    Binding a request to the keys of all layers takes as long as some layers, so there is a request for every buffer of
    keys, and for every part of it, with which the graph is called.
    """

    def __init__(self, compiled: ov.CompiledModel, shape: SegmentShape, key_type: ov.Type) -> None:
        self._compiled, self._shape, self._type = compiled, shape, key_type
        self._requests: OrderedDict[Buffer, dict[tuple[int, int], _BoundRequest]] = OrderedDict()

    def __call__(self, inputs: RowInputs, rows: CallRows) -> None:
        """Compute `inputs.out` from `inputs.x`."""
        bound = self._bound(rows, inputs.size[0])
        if bound.inputs is not inputs:
            for name, tensor in inputs.tensors.items():
                bound.request.set_tensor(name, tensor)
            for layer in self._shape.states:
                bound.request.set_tensor(state_name(layer), inputs.state(layer)[1])
            bound.inputs = inputs
        run(bound.request)

    def exported(self) -> NDArray[np.uint8]:
        """Return the compiled graph as bytes, for `Compiler.copy`."""
        return np.frombuffer(self._compiled.export_model().getbuffer(), np.uint8)

    def forget_branches(self) -> None:
        """Drop requests bound to the memory of branches, as new branches get new memory."""
        self._requests = OrderedDict((one, bound) for one, bound in self._requests.items() if one.slots.shape[2] == 1)

    def _bound(self, rows: CallRows, num_texts: int) -> "_BoundRequest":
        if rows.buffer in self._requests:
            self._requests.move_to_end(rows.buffer)
        else:
            if len(self._requests) == _MOST_MEMORIES:
                self._requests.popitem(last=False)
            self._requests[rows.buffer] = {}
        texts, requests = slice(rows.first, rows.first + num_texts), self._requests[rows.buffer]
        part = texts.start, texts.stop
        if part not in requests:
            requests[part] = _BoundRequest(self._new_request(rows.buffer, texts))
        return requests[part]

    def _new_request(self, buffer: Buffer, texts: slice) -> ov.InferRequest:
        request = self._compiled.create_infer_request()
        for layer in range(self._shape.start, self._shape.stop):
            for part in (0, 1):
                memory = buffer.slots[layer, part, texts]
                tensor = ov.Tensor(memory, ov.Shape(list(memory.shape)), self._type)
                request.set_tensor(key_name(layer, part), tensor)
                request.set_tensor(key_name(layer, part, updated=True), tensor)
        return request


@dataclass(slots=True)
class _BoundRequest:
    """A request bound to some keys, and the inputs that it is bound to (None before its first call)."""

    request: ov.InferRequest
    inputs: RowInputs | None = None


def run(request: ov.InferRequest) -> None:
    """Run a request and wait for it."""
    request.start_async()
    request.wait()
