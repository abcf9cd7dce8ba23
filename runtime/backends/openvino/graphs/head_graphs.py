"""The graphs of a head, or of any other product of rows with one matrix."""

from __future__ import annotations

import numpy as np

from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.graphs.calls import Floats, HeadCall
from runtime.backends.openvino.graphs.graph import ANY, head_graph
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.limits import Limits
from runtime.backends.openvino.weights.constants import Constants
from runtime.backends.openvino.weights.packing import Matrix


class HeadGraphs:
    """The graphs of a head: one where sizes may stay open, else one for every number of rows."""

    def __init__(self, matrix_VD: Matrix, compiler: Compiler, limits: Limits, constants: Constants) -> None:
        self._matrix, self._compiler, self._limits, self._constants = matrix_VD, compiler, limits, constants
        self._calls: dict[int, HeadCall] = {}
        self._ready: set[int] = set()

    def __call__(self, x_TD: Floats, num_rows: int) -> Floats:
        """Logits [T, V] of normalised hidden states, by a call of so many rows."""
        return self._call(num_rows)(x_TD, num_rows)

    def make_ready(self, num_rows: int) -> None:
        """Have the graph of so many rows, and have it called once if it has others too."""
        call = self._call(num_rows)
        if self._limits.has_open_sizes and num_rows not in self._ready:
            call(np.zeros((0, self._matrix.shape[1]), np.float32), num_rows)
            self._ready.add(num_rows)
            if self._matrix.block is not None:
                self._matrix.block.give_back()

    def _call(self, num_rows: int) -> HeadCall:
        size = ANY if self._limits.has_open_sizes else num_rows
        if size not in self._calls:
            self._calls[size] = HeadCall(self._compiled(size), *self._matrix.shape)
        return self._calls[size]

    def _compiled(self, num_rows: int) -> ov.CompiledModel:
        def build() -> ov.Model:
            return head_graph(self._matrix, num_rows, self._constants)

        if num_rows == ANY:
            return self._compiler.compiled(build())
        return self._compiler.kept({"head": num_rows, "weights": self._matrix.digest()}, build)
