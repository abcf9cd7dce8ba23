"""A decoder's layers as compiled graphs, each layer in one of them; and its heads, in the same way.

Layers are cut where a segment begins or ends, and a segment is computed by the graphs between: each weight is held
once, and a cut changes no bit. Where a device takes dynamic shapes, one graph serves any number of rows and slots, with
copies for small decoders (`buckets`), and hidden states on the way are outputs of it: every cut makes a pass longer.
Elsewhere there is a graph for each size, as many as there is room for.
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
from runtime.backends.openvino.buckets import (
    COPIES_BYTES,
    SINGLE_ROW,
    Limits,
    Size,
    is_small,
    own_size,
    sizes_with_copies,
)
from runtime.backends.openvino.calls import Floats, Rotation, RowInputs, SegmentCall, run
from runtime.backends.openvino.compiler import Compiled, Compiler
from runtime.backends.openvino.graph import ANY, OUT, Constants, SegmentShape, X, head_graph, segment_graph
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.packing import PackedLayer, PackedLayers, PackedMatrix
from runtime.backends.openvino.texts import CallRows, scratch_rows
from runtime.backends.sequences import Segment
from runtime.models.config import ModelConfig

_MOST_BYTES: Final = 4_000_000_000
"""Bytes of weights that graphs of static shape may hold; beyond it the least recently used are dropped."""
_FEWEST_GRAPHS: Final = 6
"""Graphs of static shape that are held in any case."""


class GraphKey(NamedTuple):
    """A graph: its layers, the sizes that it is compiled for, and the one size of its calls (None: any)."""

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
        """Return hidden states [B, T, D] in float32 after layers of a segment, ascending, and after its last one.

        They are computed by calls over so many texts and rows. Whether those at the end of a graph are rounded, as
        those on the way are, is OpenVINO's choice.
        """
        self.show(states)
        inputs = self._inputs_of((*size, rows.buffer.slots.shape[-2]))
        inputs.fill(x_BTD, rotation, rows)
        found = []
        for key in self._keys(segment, inputs):
            # a copy takes as long to make as many calls: one that nobody asked to have ready shares the first graph
            self._call(key if key in self._calls else GraphKey(key.shape))(inputs, rows)
            inputs.x[...] = inputs.out
            found += [inputs.state(layer)[0] for layer in key.shape.states if layer in states]
            if key.shape.stop in states and key.shape.stop != segment[1]:
                found.append(inputs.out.copy())
        return [one[: x_BTD.shape[0], : x_BTD.shape[1]].copy() for one in (*found, inputs.out)]

    def cut(self, segments: Iterable[Segment]) -> None:
        """Let graphs begin and end where segments do."""
        self._make_again(self._cuts, {cut for segment in segments for cut in segment})

    def show(self, layers: Iterable[int]) -> None:
        """Let graphs return the hidden states after some layers."""
        self._make_again(self._shown, layers)

    def _make_again(self, kept: set[int], layers: Iterable[int]) -> None:
        """Add layers to some, and drop the graphs that have them on their way."""
        new = set(layers) - kept
        kept |= new
        for key in list(self._calls):
            if any(key.shape.start < layer < key.shape.stop for layer in new):
                self._drop(key)

    def make_ready(self, segments: Iterable[Segment], sizes: Sequence[Size], slots: Iterable[int]) -> None:
        """Make the graphs of segments, and call them once with each size and number of slots."""
        copied = sizes_with_copies(sizes, self._num_bytes) if self._is_dynamic else ()
        for segment, size, num_slots in product(segments, sizes, slots):
            inputs = self._inputs_of((*size, num_slots))
            for own in self._keys(segment, inputs):
                key = own if size in copied else GraphKey(own.shape)
                call = self._call(key)
                if not self._is_dynamic or inputs.size in self._called.setdefault(key, set()):
                    continue
                call(inputs, scratch_rows(self._config, *inputs.size, self._constants.dtype))
                self._called[key].add(inputs.size)
                for layer in self._layers_of(key):
                    for matrix in layer.matrices.values():
                        matrix.give_back()

    def forget_branches(self) -> None:
        """Let go of the memory of branches that others are to follow."""
        for call in self._calls.values():
            call.forget_branches()

    def _keys(self, segment: Segment, inputs: RowInputs) -> Iterable[GraphKey]:
        self.cut([segment])
        start, stop = segment
        own = own_size(inputs.size[:2], self._num_bytes) if self._is_dynamic else None
        parts = pairwise(sorted(cut for cut in self._cuts if start <= cut <= stop))
        return [GraphKey(self._shape(*part, inputs.size), own) for part in parts]

    def _shape(self, start: int, stop: int, size: tuple[int, int, int]) -> SegmentShape:
        if not self._is_dynamic:
            return SegmentShape(start, stop, *size)
        return SegmentShape(start, stop, states=tuple(sorted(one for one in self._shown if start < one < stop)))

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
            known_by = {"segment": shape[:5], "config": self._config, "weights": [layer.digest() for layer in layers]}
            compiled = self._compiler.kept(known_by, build)
        self._calls[key] = SegmentCall(compiled, shape, self._constants.type)
        return self._calls[key]

    def _copy(self, shape: SegmentShape) -> ov.CompiledModel | None:
        """Return a copy of the graph of some layers, if a small decoder has it; its exported bytes have to stay."""
        like = next((call for key, call in self._calls.items() if key.shape == shape), None)
        if like is None or not is_small(self._num_bytes):
            return None
        if shape not in self._compiled:
            self._compiled[shape] = like.exported()
        return self._compiler.copy(self._compiled[shape])

    def _make_room_for_copy(self, num_bytes: int) -> None:
        """Drop the least recently called copies, but never a small decoder's of single rows."""
        copies, is_small_one = [key for key in self._calls if key.size is not None], is_small(self._num_bytes)
        held, most = sum(map(self._bytes_of, copies)), COPIES_BYTES if is_small_one else self._num_bytes
        for key in copies:
            if held + num_bytes <= most:
                return
            if key.size != SINGLE_ROW or not is_small_one:
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
    """The graphs of a head: one where shapes may be dynamic, else one for each number of rows."""

    def __init__(self, matrix_VD: PackedMatrix, compiler: Compiler, limits: Limits, constants: Constants) -> None:
        self._matrix, self._compiler, self._constants = matrix_VD, compiler, constants
        self._is_dynamic = limits.device.has_dynamic_shapes
        self._requests: dict[int, ov.InferRequest] = {}
        self._memory: dict[int, tuple[Floats, Floats]] = {}
        self._bound: dict[int, int] = {}

    def __call__(self, x_TD: Floats, num_rows: int) -> Floats:
        """Return logits [T, V] in float32 of normalised hidden states, padded to `num_rows`."""
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
        """Make the graph of `num_rows`, and call it once."""
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
    """Return what computes as `runtime.target.exit_adapter.ExitAdapter`, of weights by their names there."""
    affine, up, down = (product_with(arrays[f"{name}.weight"]) for name in ("affine", "up", "down"))
    bias, norm = (arrays[name].astype(np.float32) for name in ("affine.bias", "norm"))

    def adapted(x_BTD: Floats) -> Floats:
        x_BTD = affine(x_BTD) + bias
        wide = up(rms_norm(x_BTD, norm, eps))
        sigmoid = (np.tanh(wide / 2) + 1) / 2  # which overflows nowhere
        return x_BTD + down(wide * sigmoid)  # type: ignore[no-any-return]

    return adapted
