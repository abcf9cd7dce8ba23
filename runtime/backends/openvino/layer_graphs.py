"""The compiled graphs of a decoder's layers, and of its heads.

The layers are cut wherever a segment begins or ends; a segment runs the graphs between. So each weight is held once,
and cuts do not change bits. On a device with dynamic shapes a graph serves any number of rows and slots, with copies
for small decoders (`buckets`); hidden states within a graph are further outputs, as a cut would make a pass longer. On
other devices there is a graph for each size, as many as there is room for.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise, product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import rms_norm
from runtime.backends.backend import Head
from runtime.backends.kv_memory import Segment
from runtime.backends.openvino.buckets import (
    COPIES_BYTES,
    SINGLE_ROW,
    Limits,
    Size,
    is_small,
    size_of_copy,
    sizes_with_copies,
)
from runtime.backends.openvino.compiler import Compiled, Compiler
from runtime.backends.openvino.graph import ANY, OUT, Constants, SegmentShape, X, head_graph, segment_graph
from runtime.backends.openvino.graph_calls import Floats, Rotation, RowInputs, SegmentCall, run
from runtime.backends.openvino.kv_buffers import CallRows, scratch_rows
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.packing import PackedLayer, PackedLayers, PackedMatrix
from runtime.models.config import ModelConfig

_MOST_BYTES: Final = 4_000_000_000
"""Most bytes of weights in graphs of static shape; beyond it the least recently used are dropped."""
_FEWEST_GRAPHS: Final = 6
"""Number of graphs of static shape that are kept whatever their bytes."""


class GraphKey(NamedTuple):
    """A graph: its layers and shape, and for a copy the only size of its calls (None: any size)."""

    shape: SegmentShape
    size: Size | None = None


class LayerGraphs:
    """The layers of a decoder on a device."""

    def __init__(
        self, config: ModelConfig, layers: PackedLayers, compiler: Compiler, limits: Limits, constants: Constants
    ) -> None:
        self._config, self._layers, self._compiler, self._constants = config, layers, compiler, constants
        self._is_dynamic = limits.device.has_dynamic_shapes
        self._cuts: set[int] = set()
        self._shown: set[int] = set()
        self._calls: OrderedDict[GraphKey, SegmentCall] = OrderedDict()
        self._inputs: dict[tuple[int, int, int], RowInputs] = {}
        self._called: dict[GraphKey, set[tuple[int, int, int]]] = {}
        self._compiled: dict[SegmentShape, Compiled] = {}

    def run(
        self, x_BTD: Floats, segment: Segment, states: Collection[int], size: Size, rotation: Rotation, rows: CallRows
    ) -> list[Floats]:
        """Return float32 hidden states [B, T, D] after the layers `states`, ascending, and at the segment's end.

        Calls are padded to the texts and rows of `size`. OpenVINO rounds states within a graph, and may or may not
        round those at its end.
        """
        self.show(states)
        inputs = self._inputs_of((*size, rows.buffer.slots.shape[-2]))
        inputs.fill(x_BTD, rotation, rows)
        found = []
        for key in self._keys(segment, inputs):
            # making a copy takes as long as many calls, so only `make_ready` does it
            self._call(key if key in self._calls else GraphKey(key.shape))(inputs, rows)
            inputs.x[...] = inputs.out
            found += [inputs.state(layer)[0] for layer in key.shape.states if layer in states]
            if key.shape.stop in states and key.shape.stop != segment[1]:
                found.append(inputs.out.copy())
        return [one[: x_BTD.shape[0], : x_BTD.shape[1]].copy() for one in (*found, inputs.out)]

    def cut(self, segments: Iterable[Segment]) -> None:
        """Cut the layers into graphs where segments begin and end."""
        self._add_and_drop(self._cuts, {cut for segment in segments for cut in segment})

    def show(self, layers: Iterable[int]) -> None:
        """Make graphs return the hidden states after these layers."""
        self._add_and_drop(self._shown, layers)

    def _add_and_drop(self, known: set[int], layers: Iterable[int]) -> None:
        """Add layers to a set, and drop graphs that have a new one within, to be compiled again."""
        new = set(layers) - known
        known |= new
        for key in list(self._calls):
            if any(key.shape.start < layer < key.shape.stop for layer in new):
                self._drop(key)

    def make_ready(self, segments: Iterable[Segment], sizes: Sequence[Size], slots: Iterable[int]) -> None:
        """Compile the graphs of segments, and call dynamic ones once with each size and number of slots."""
        copied = sizes_with_copies(sizes, self._num_bytes) if self._is_dynamic else ()
        for segment, size, num_slots in product(segments, sizes, slots):
            inputs = self._inputs_of((*size, num_slots))
            for copy_key in self._keys(segment, inputs):
                key = copy_key if size in copied else GraphKey(copy_key.shape)
                call = self._call(key)
                if not self._is_dynamic or inputs.size in self._called.setdefault(key, set()):
                    continue
                call(inputs, scratch_rows(self._config, *inputs.size, self._constants.dtype))
                self._called[key].add(inputs.size)
                for layer in self._layers_of(key):
                    for matrix in layer.matrices.values():
                        matrix.give_back()

    def forget_branches(self) -> None:
        """Release the memory of branches, before new ones are made."""
        for call in self._calls.values():
            call.forget_branches()

    def _keys(self, segment: Segment, inputs: RowInputs) -> Iterable[GraphKey]:
        self.cut([segment])
        start, stop = segment
        copy_size = size_of_copy(inputs.size[:2], self._num_bytes) if self._is_dynamic else None
        parts = pairwise(sorted(cut for cut in self._cuts if start <= cut <= stop))
        return [GraphKey(self._shape(*part, inputs.size), copy_size) for part in parts]

    def _shape(self, start: int, stop: int, size: tuple[int, int, int]) -> SegmentShape:
        if not self._is_dynamic:
            return SegmentShape(start, stop, *size)
        return SegmentShape(start, stop, states=tuple(sorted(layer for layer in self._shown if start < layer < stop)))

    def _layers_of(self, key: GraphKey) -> list[PackedLayer]:
        return [self._layers[index] for index in range(key.shape.start, key.shape.stop)]

    def _bytes_of(self, key: GraphKey) -> int:
        return sum(layer.num_bytes for layer in self._layers_of(key))

    @cached_property
    def _num_bytes(self) -> int:
        return self._config.num_layers * self._layers[0].num_bytes

    def _call(self, key: GraphKey) -> SegmentCall:
        if key in self._calls:
            self._calls.move_to_end(key)
            return self._calls[key]
        shape, layers, num_bytes = key.shape, self._layers_of(key), self._bytes_of(key)
        build = partial(segment_graph, self._config, layers, shape, self._constants)
        if self._is_dynamic:
            if key.size is not None:
                self._make_room_for_copy(num_bytes)
            compiled = self._copy(shape) or self._compiler.compiled(build())
        else:
            while len(self._calls) >= max(_FEWEST_GRAPHS, _MOST_BYTES // num_bytes):
                self._drop(next(iter(self._calls)))
            identity = {"segment": shape[:5], "config": self._config, "weights": [layer.digest() for layer in layers]}
            compiled = self._compiler.kept(identity, build)
        self._calls[key] = SegmentCall(compiled, shape, self._constants.type)
        return self._calls[key]

    def _copy(self, shape: SegmentShape) -> ov.CompiledModel | None:
        """Return a copy of a small decoder's graph; None if it is not compiled yet or the decoder is not small."""
        original = next((call for key, call in self._calls.items() if key.shape == shape), None)
        if original is None or not is_small(self._num_bytes):
            return None
        if shape not in self._compiled:
            self._compiled[shape] = original.exported()  # copies read it as long as they live
        return self._compiler.copy(self._compiled[shape])

    def _make_room_for_copy(self, num_bytes: int) -> None:
        """Drop the least recently called copies, except those of a small decoder for single rows."""
        copies, is_small_decoder = [key for key in self._calls if key.size is not None], is_small(self._num_bytes)
        held, most = sum(map(self._bytes_of, copies)), COPIES_BYTES if is_small_decoder else self._num_bytes
        for key in copies:
            if held + num_bytes <= most:
                return
            if key.size != SINGLE_ROW or not is_small_decoder:
                held -= self._bytes_of(key)
                self._drop(key)

    def _drop(self, key: GraphKey) -> None:
        del self._calls[key]
        self._called.pop(key, None)
        if not any(other.shape == key.shape for other in self._calls):
            self._compiled.pop(key.shape, None)

    def _inputs_of(self, size: tuple[int, int, int]) -> RowInputs:
        if size not in self._inputs:
            self._inputs[size] = RowInputs(self._config, *size)
        return self._inputs[size]


class HeadGraphs:
    """The graphs of a head: a single one with dynamic shapes, else one for each number of rows."""

    def __init__(self, matrix_VD: PackedMatrix, compiler: Compiler, limits: Limits, constants: Constants) -> None:
        self._matrix, self._compiler, self._constants = matrix_VD, compiler, constants
        self._is_dynamic = limits.device.has_dynamic_shapes
        self._requests: dict[int, ov.InferRequest] = {}
        self._memory: dict[int, tuple[Floats, Floats]] = {}
        self._bound: dict[int, int] = {}

    def __call__(self, x_TD: Floats, num_rows: int) -> Floats:
        """Return float32 logits [T, V] of normalised hidden states [T, D], computed with `num_rows` rows."""
        size = ANY if self._is_dynamic else num_rows
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
        """Compile the graph for `num_rows` and call it once."""
        if num_rows not in self._memory:
            self(np.zeros((0, self._matrix.shape[1]), np.float32), num_rows)
            self._matrix.give_back()

    def _compiled(self, num_rows: int) -> ov.CompiledModel:
        build = partial(head_graph, self._matrix, num_rows, self._constants)
        if num_rows == ANY:
            return self._compiler.compiled(build())
        return self._compiler.kept({"head": num_rows, "weights": self._matrix.digest()}, build)


def compiled_adapter(
    arrays: Mapping[str, NDArray[Any]], product_with: Callable[[NDArray[Any]], Head], eps: float
) -> Head:
    """Return a function that computes what `runtime.target.exit_adapter.ExitAdapter` does with these parameters."""
    affine, up, down = (product_with(arrays[f"{name}.weight"]) for name in ("affine", "up", "down"))
    bias, norm = (arrays[name].astype(np.float32) for name in ("affine.bias", "norm"))

    def adapted(x_BTD: Floats) -> Floats:
        x_BTD = affine(x_BTD) + bias
        wide = up(rms_norm(x_BTD, norm, eps))
        sigmoid = (np.tanh(wide / 2) + 1) / 2  # unlike exp, tanh does not overflow
        return x_BTD + down(wide * sigmoid)  # type: ignore[no-any-return]

    return adapted
