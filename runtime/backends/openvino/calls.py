"""A compiled graph that is called again and again: its tensors are set once, a call fills them and waits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runtime.backends.openvino.graph import COS, MASK, OUT, PLACES, SIN, SegmentShape, X, key_name
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.texts import Rows, Slots


class HeadCall:
    """Logits of up to so many rows."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._x, self._out = (_tensor(self._request, name) for name in (X, OUT))

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Logits [T, V] in float32."""
        count = len(x_TD)
        _fill(self._x, x_TD)
        _run(self._request)
        return torch.from_numpy(self._out[:count].copy())


class SegmentCall:
    """Layers over up to so many rows of so many texts."""

    def __init__(self, compiled: ov.CompiledModel, shape: SegmentShape, key_type: ov.Type) -> None:
        self._request = compiled.create_infer_request()
        self._shape, self._type = shape, key_type
        self._x, self._cos, self._sin, self._mask, self._places, self._out = (
            _tensor(self._request, name) for name in (X, COS, SIN, MASK, PLACES, OUT)
        )
        self._bound: tuple[Slots, int] | None = None

    def __call__(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor], rows: Rows) -> Tensor:
        """Hidden states [B, T, D] in float32."""
        shape, (num_texts, num_rows, size) = self._shape, x_BTD.shape
        self._bind(rows)
        for given, tensor in zip((x_BTD, *rotation), (self._x, self._cos, self._sin), strict=True):
            padded = tensor.reshape(shape.num_texts, shape.num_rows, -1)
            padded[:num_texts, :num_rows] = given.float().reshape(num_texts, num_rows, -1).numpy()
        mask = self._mask[:, 0, 0]
        mask[:num_texts, :num_rows] = rows.mask
        self._fill_places(rows.places)
        _run(self._request)
        out = self._out.reshape(shape.num_texts, shape.num_rows, size)
        return torch.from_numpy(out[:num_texts, :num_rows].copy())

    def _fill_places(self, places_BT: np.ndarray) -> None:
        """Rows that fill up write to the last slot, which no text uses."""
        shape = self._shape
        num_kv = len(self._places) // (shape.num_texts * shape.num_rows)
        slots = np.full((shape.num_texts, shape.num_rows), shape.num_slots - 1)
        slots[: places_BT.shape[0], : places_BT.shape[1]] = places_BT
        first = np.arange(shape.num_texts * num_kv).reshape(shape.num_texts, num_kv, 1) * shape.num_slots
        self._places[:] = (first + slots[:, None]).reshape(-1)

    def _bind(self, rows: Rows) -> None:
        """Tell the graph where the keys of these texts are."""
        if self._bound is not None and self._bound[0] is rows.slots and self._bound[1] == rows.first:
            return
        shape = self._shape
        texts = slice(rows.first, rows.first + shape.num_texts)
        for layer in range(shape.start, shape.stop):
            for part in (0, 1):
                memory = rows.slots[layer, part, texts].reshape(-1, rows.slots.shape[-1])
                tensor = ov.Tensor(memory, ov.Shape(list(memory.shape)), self._type)
                self._request.set_tensor(key_name(layer, part), tensor)
                self._request.set_tensor(key_name(layer, part, updated=True), tensor)
        self._bound = rows.slots, rows.first


def _run(request: ov.InferRequest) -> None:
    request.start_async()
    request.wait()


def _tensor(request: ov.InferRequest, name: str) -> np.ndarray:
    """The memory of an input or output that stays where it is."""
    data: np.ndarray = request.get_tensor(name).data
    data[...] = 0
    return data


def _fill(tensor: np.ndarray, rows: Tensor) -> None:
    tensor[: len(rows)] = rows.float().numpy()
