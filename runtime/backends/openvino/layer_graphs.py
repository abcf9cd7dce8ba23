"""A decoder's layers as compiled graphs, none of which is in two of them.

Layers are cut where a segment begins or ends, and a segment is computed by the graphs between: so a target that is
verified whole, up to an exit and from there on holds every weight once, and a cut changes no bit.

Where a device takes graphs of open sizes, one serves any number of rows and slots. Every size that it has not seen
costs some milliseconds, and every call of another size than the last some more, so calls are filled up to few sizes.
Elsewhere there is a graph for every size, with weights of its own, and only so many are held as there is room for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from runtime.backends.backend import Segment
from runtime.backends.openvino.calls import RowInputs, SegmentCall
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.constants import Constants
from runtime.backends.openvino.graph import SegmentShape, segment_graph
from runtime.backends.openvino.layer_weights import LayersTaken
from runtime.backends.openvino.limits import Limits
from runtime.backends.openvino.texts import Rows, scratch_rows
from runtime.models.config import ModelConfig

_MOST_BYTES: Final = 4_000_000_000
"""Of the weights that graphs of fixed sizes hold; beyond it those that were not used for longest go, but never the last
few."""
_FEWEST_GRAPHS: Final = 6


class LayerGraphs:
    """The layers of a decoder on a device."""

    def __init__(
        self, config: ModelConfig, layers: LayersTaken, compiler: Compiler, limits: Limits, constants: Constants
    ) -> None:
        self._config, self._layers, self._compiler, self._limits = config, layers, compiler, limits
        self._constants = constants
        self._cuts: set[int] = set()
        self._calls: OrderedDict[SegmentShape, SegmentCall] = OrderedDict()
        self._inputs: dict[tuple[int, int, int], RowInputs] = {}
        self._ready: set[tuple[SegmentShape, int, int, int]] = set()

    def run(
        self, x_BTD: Tensor, segment: Segment, size: tuple[int, int], rotation: tuple[Tensor, Tensor], rows: Rows
    ) -> Tensor:
        """Hidden states [B, T, D] in float32 after a segment, by calls over so many texts and rows."""
        inputs = self._inputs_of(*size, rows.slots.shape[-2])
        inputs.fill(x_BTD, rotation, rows)
        for shape in self._shapes(segment, inputs):
            self._call(shape)(inputs, rows)
            inputs.x[...] = inputs.out
        return torch.from_numpy(inputs.out[: x_BTD.shape[0], : x_BTD.shape[1]].copy())

    def cut(self, segments: Iterable[Segment]) -> None:
        """Let graphs begin and end where segments do."""
        new = {cut for segment in segments for cut in segment} - self._cuts
        self._cuts |= new
        for shape in list(self._calls):
            if any(shape.start < cut < shape.stop for cut in new):
                del self._calls[shape]

    def make_ready(self, segment: Segment, num_texts: int, num_rows: int, num_slots: int) -> None:
        """Have the graphs of a segment, and have them called once with so many texts, rows and slots."""
        inputs = self._inputs_of(num_texts, num_rows, num_slots)
        for shape in self._shapes(segment, inputs):
            call = self._call(shape)
            if not self._limits.has_open_sizes or (shape, num_texts, num_rows, num_slots) in self._ready:
                continue
            call(inputs, scratch_rows(self._config, *inputs.size, self._constants.dtype))
            self._ready.add((shape, num_texts, num_rows, num_slots))
            for layer in range(shape.start, shape.stop):
                self._layers[layer].give_back()

    def _shapes(self, segment: Segment, inputs: RowInputs) -> Iterable[SegmentShape]:
        """The graphs of a segment, first to last."""
        self.cut([segment])
        start, stop = segment
        size = () if self._limits.has_open_sizes else inputs.size
        return [SegmentShape(*part, *size) for part in pairwise(sorted(c for c in self._cuts if start <= c <= stop))]

    def _call(self, shape: SegmentShape) -> SegmentCall:
        """The graph of a shape, compiled when it is first asked for."""
        if shape in self._calls:
            self._calls.move_to_end(shape)
            return self._calls[shape]
        layers = [self._layers[index] for index in range(shape.start, shape.stop)]
        config, constants = self._config, self._constants
        if self._limits.has_open_sizes:
            compiled = self._compiler.compiled(segment_graph(config, layers, shape, constants))
        else:
            self._make_room(sum(layer.num_bytes for layer in layers))
            key = {"segment": shape, "config": config, "weights": [layer.digest() for layer in layers]}
            compiled = self._compiler.kept(key, lambda: segment_graph(config, layers, shape, constants))
        self._calls[shape] = SegmentCall(compiled, shape, self._constants.type)
        return self._calls[shape]

    def _make_room(self, num_bytes: int) -> None:
        most = max(_FEWEST_GRAPHS, _MOST_BYTES // num_bytes)
        while len(self._calls) >= most:
            self._calls.popitem(last=False)

    def _inputs_of(self, num_texts: int, num_rows: int, num_slots: int) -> RowInputs:
        size = num_texts, num_rows, num_slots
        if size not in self._inputs:
            self._inputs[size] = RowInputs(self._config, *size)
        return self._inputs[size]
