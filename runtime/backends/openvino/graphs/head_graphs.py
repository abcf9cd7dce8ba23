"""The graphs of a head, or of another product of rows with one matrix; an exit's adapter is made of such products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import rms_norm
from runtime.backends.backend import Head
from runtime.backends.openvino.buckets import Limits
from runtime.backends.openvino.calls import Floats, run
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.graph import ANY, OUT, Constants, X, head_graph
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.packing import PackedMatrix


class HeadGraphs:
    """The graphs of a head: one where sizes may stay open, else one for every number of rows."""

    def __init__(self, matrix_VD: PackedMatrix, compiler: Compiler, limits: Limits, constants: Constants) -> None:
        self._matrix, self._compiler, self._constants = matrix_VD, compiler, constants
        self._is_open = limits.device.has_open_sizes
        self._requests: dict[int, ov.InferRequest] = {}
        self._memory: dict[int, tuple[Floats, Floats]] = {}
        self._bound: dict[int, int] = {}

    def __call__(self, x_TD: Floats, num_rows: int) -> Floats:
        """Logits [T, V] in float32 of normalised hidden states, by a call of so many rows."""
        size = ANY if self._is_open else num_rows
        if size not in self._requests:
            self._requests[size] = self._compiled(size).create_infer_request()
        if num_rows not in self._memory:
            outputs, inputs = self._matrix.shape
            self._memory[num_rows] = np.zeros((num_rows, inputs), np.float32), np.zeros((num_rows, outputs), np.float32)
        if self._bound.get(size) != num_rows:
            for name, memory in zip((X, OUT), self._memory[num_rows], strict=True):
                self._requests[size].set_tensor(name, ov.Tensor(memory, shared_memory=True))
            self._bound[size] = num_rows
        x, out = self._memory[num_rows]
        x[: len(x_TD)] = x_TD
        run(self._requests[size])
        return out[: len(x_TD)].copy()

    def make_ready(self, num_rows: int) -> None:
        """Have the graph of so many rows, and have it called once."""
        if num_rows not in self._memory:
            self(np.zeros((0, self._matrix.shape[1]), np.float32), num_rows)
            self._matrix.give_back()

    def _compiled(self, num_rows: int) -> ov.CompiledModel:
        def build() -> ov.Model:
            return head_graph(self._matrix, num_rows, self._constants)

        if num_rows == ANY:
            return self._compiler.compiled(build())
        return self._compiler.kept({"head": num_rows, "weights": self._matrix.digest()}, build)


class CompiledAdapter:
    """Computes what `runtime.target.exit_adapter.ExitAdapter` does, of the same weights."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], product: Callable[[NDArray[Any]], Head], eps: float) -> None:
        """Args: its weights by their names there; what computes products with a matrix; of its norm."""
        self._affine, self._up, self._down = (product(arrays[f"{name}.weight"]) for name in ("affine", "up", "down"))
        self._bias, self._norm = (arrays[name].astype(np.float32) for name in ("affine.bias", "norm"))
        self._eps = eps

    def __call__(self, x_BTD: Floats) -> Floats:
        """Hidden states after the exit layer -> states for the target's final norm and head, [B, T, D]."""
        x_BTD = self._affine(x_BTD) + self._bias
        wide = self._up(rms_norm(x_BTD, self._norm, self._eps))
        sigmoid = (np.tanh(wide / 2) + 1) / 2  # which overflows nowhere
        return x_BTD + self._down(wide * sigmoid)  # type: ignore[no-any-return]
