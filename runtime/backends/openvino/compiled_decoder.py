"""A decoder as compiled segments of static shapes.

Hidden states cross as float32 and are rounded to the type of arithmetic on both sides of a cut, as between two layers.
The embedding is looked up here: a graph of it would hold a copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from runtime.backends.backend import Head, Plan, Segment
from runtime.backends.openvino.buckets import PROMPT_ROWS, pieces, slot_buckets
from runtime.backends.openvino.calls import HeadCall, SegmentCall
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.constants import Form, Weights, arithmetic
from runtime.backends.openvino.graph import SegmentShape, head_graph, segment_graph, segment_weights
from runtime.backends.openvino.limits import limits_of
from runtime.backends.openvino.row_floor import PROBED_ROWS, row_floor
from runtime.backends.openvino.texts import BranchRows, Rows, StaticBranches, StaticText, WindowThenBranches
from runtime.models.decoder import Decoder

_MOST_BYTES: Final = 4_000_000_000
"""Of the weights that loaded graphs hold; beyond it those that were not used for longest go, but never the last few."""
_FEWEST_GRAPHS: Final = 6


class OpenVinoBackend:
    """Implements `runtime.backends.backend.Backend` on a device of OpenVINO."""

    has_open_keys: bool = False
    device = torch.device("cpu")
    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (4, 8), (8, 4), (8, 1, 3))

    def __init__(self, decoder: Decoder, *, device: str, form: Form, num_threads: int) -> None:
        self.config, self._decoder = decoder.config, decoder
        self._limits = limits_of(device)
        self._weights = Weights(form, self._limits.half)
        self.dtype = arithmetic(form)
        self._compiler = Compiler(device, form, num_threads)
        self._segments: OrderedDict[SegmentShape, SegmentCall] = OrderedDict()
        self._rows: set[int] = set()
        self._num_texts: set[int] = set()
        self._heads: list[HeadCalls] = []
        self._floor = 1
        self._head = self._new_head(decoder.lm_head.weight, decoder.final_norm)

    def new_text(self) -> StaticText:
        """Room for a text."""
        return StaticText(self.config, self._weights.dtype)

    def new_branches(self, num_branches: int) -> StaticBranches:
        """Room for branches of a text."""
        most = self._bucket(num_branches) if num_branches else 0
        return StaticBranches(self.config, num_branches, self._weights.dtype, room=num_branches + most)

    def prepare(self, plan: Plan) -> None:
        """Compile, or read, the graphs of a sequence.

        Raises:
            ConfigError: the device has no graphs of its size.
            LaneError: the device refuses a graph.
        """
        self._limits.require(plan)
        if self._limits.is_probed:
            self._floor = self._probed_floor
        self._rows = {self._bucket(count) for count in plan.rows}
        self._num_texts = {self._bucket(plan.num_branches)} if plan.num_branches else set()
        sizes = [size for size in slot_buckets(plan.num_slots) if size > plan.least_slots]
        prompt_sizes = slot_buckets(plan.num_prompt)
        for segment in plan.segments:
            self._load(segment, [(1, count) for count in self._rows], sizes)
            self._load(segment, [(count, 1) for count in self._num_texts], sizes)
        for segment in plan.prompt_segments:
            self._load(segment, [(1, count) for count in PROMPT_ROWS], prompt_sizes)
        for head in self._heads:
            for count in self._rows | self._num_texts:
                head.load(count)

    def embedding(self, ids: Tensor) -> Tensor:
        """Hidden states that enter the first layer."""
        return self._decoder.embedding(ids).to(self.dtype)  # type: ignore[no-any-return]

    def run_layers(
        self, x_BTD: Tensor, start: int, stop: int, *, positions: Tensor, mask: Tensor | None = None, cache: Any
    ) -> Tensor:
        """Hidden states after layer `stop`."""
        if start == stop:
            return x_BTD
        if isinstance(cache, WindowThenBranches):
            return self._window_then_branches(x_BTD, (start, stop), positions, cache)
        if isinstance(cache, BranchRows):
            return self._run(x_BTD, (start, stop), positions, cache.rows)
        assert isinstance(cache, StaticText), "a text of another back end"
        if mask is not None:
            return self._run(x_BTD, (start, stop), positions, cache.rows(x_BTD.shape[1], mask))
        return self._run_text(x_BTD, (start, stop), positions, cache)

    def normalise(self, x: Tensor) -> Tensor:
        """The final norm alone."""
        return self._decoder.normalise(x.to(self._decoder.final_norm.dtype))

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Final norm and output head."""
        return self._head(x_BTD)

    def head(self, rows_VD: Tensor) -> Head:
        """A head of other rows."""
        return self._new_head(rows_VD, None)

    def on_host(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """They are there."""
        return tensors

    def wait(self) -> None:
        """Nothing is under way."""

    def _run_text(self, x_BTD: Tensor, segment: Segment, positions: Tensor, text: StaticText) -> Tensor:
        """Rows of a text in its order, in as many calls as there are graphs for."""
        cursor, num_rows = text.cursor, x_BTD.shape[1]
        done = []
        for first, last in pieces(num_rows, self._rows | set(PROMPT_ROWS)):
            text.set_length(cursor + first)
            rows = text.rows(last - first, None)
            done.append(self._run(x_BTD[:, first:last], segment, positions[first:last], rows))
        text.set_length(cursor)
        return done[0] if len(done) == 1 else torch.cat(done, dim=1)

    def _window_then_branches(
        self, x_BTD: Tensor, segment: Segment, positions: Tensor, both: WindowThenBranches
    ) -> Tensor:
        count, text = both.num_window, both.text
        window = self._run_text(x_BTD[:, :count], segment, positions[:count], text)
        both.branches.copy(text, slice(*segment), text.cursor, text.cursor + count)
        x_R1D = x_BTD[0, count:, None]
        after = self._run(x_R1D, segment, positions[count:, None], both.rows.rows)
        return torch.cat([window, after.transpose(0, 1)], dim=1)

    def _run(self, x_BTD: Tensor, segment: Segment, positions: Tensor, rows: Rows) -> Tensor:
        num_texts, num_rows, _ = x_BTD.shape
        if num_texts == 1:
            num_rows = self._size(num_rows, self._rows | set(PROMPT_ROWS))
        else:
            num_texts = self._size(num_texts, self._num_texts)
        shape = SegmentShape(*segment, num_texts, num_rows, rows.slots.shape[-2])
        rotary = self._decoder.rotary
        rotation = rotary.cos_PH[positions], rotary.sin_PH[positions]
        return self._segment(shape)(x_BTD, rotation, rows).to(self.dtype)

    def _load(self, segment: Segment, counts: Iterable[tuple[int, int]], slots: Sequence[int]) -> None:
        """Have the graphs of a segment for so many texts and rows."""
        for num_texts, num_rows in counts:
            for num_slots in slots:
                self._segment(SegmentShape(*segment, num_texts, num_rows, num_slots))

    def _segment(self, shape: SegmentShape) -> SegmentCall:
        """The segment of a shape, compiled when it is first asked for."""
        if shape in self._segments:
            self._segments.move_to_end(shape)
            return self._segments[shape]
        used = segment_weights(self._decoder, shape)
        num_bytes = sum(weight.numel() for weight in used) * (
            1 if self._weights.form == "int8" else self.dtype.itemsize
        )
        most = max(_FEWEST_GRAPHS, _MOST_BYTES // num_bytes)
        while len(self._segments) >= most:
            self._segments.popitem(last=False)
        key = {"segment": shape, "config": self.config, "weights": self._weights.digest(*used)}
        compiled = self._compiler.compiled(key, lambda: segment_graph(self._decoder, shape, self._weights))
        self._segments[shape] = SegmentCall(compiled, shape, self._weights.type)
        return self._segments[shape]

    @cached_property
    def _probed_floor(self) -> int:
        generator = torch.Generator().manual_seed(0)
        prompt, total = 20, PROBED_ROWS[-1]
        x_BTD = self.embedding(torch.randint(self.config.vocab_size, (1, prompt + total), generator=generator))

        def read(count: int) -> Tensor:
            text, found = self.new_text(), []
            text.start(prompt + total)
            for stop in (prompt, *range(prompt + count, prompt + total, count), prompt + total):
                self._rows = {PROBED_ROWS[-1] if stop == prompt else count}
                positions = torch.arange(text.cursor, stop)
                found.append(self._run_text(x_BTD[:, text.cursor : stop], (0, 1), positions, text))
                text.set_length(stop)
            return torch.cat(found, dim=1)

        floor = row_floor(read)
        self._segments.clear()
        return floor

    def _bucket(self, count: int) -> int:
        """Rows of the graph that serves so many."""
        return self._limits.bucket(max(count, self._floor))

    def _size(self, count: int, planned: Iterable[int]) -> int:
        """The least of the sizes planned that is large enough; without one, that of any graph."""
        return min((size for size in planned if size >= count), default=self._bucket(count))

    def _new_head(self, rows_VD: Tensor, norm: Tensor | None) -> Head:
        rows_VD = rows_VD.detach()
        used = [rows_VD] if norm is None else [rows_VD, norm]

        def compiled(num_rows: int) -> HeadCall:
            key = {"head": num_rows, "eps": self.config.norm_eps, "weights": self._weights.digest(*used)}
            return HeadCall(
                self._compiler.compiled(
                    key, lambda: head_graph(norm, self.config.norm_eps, rows_VD, num_rows, self._weights)
                )
            )

        calls = HeadCalls(compiled)
        self._heads.append(calls)

        def logits(x: Tensor) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            found = calls.load(self._size(len(flat), self._rows | self._num_texts))(flat)
            return found.view(*x.shape[:-1], -1)

        return logits


class HeadCalls:
    """The graphs of a head by their rows."""

    def __init__(self, compiled: Callable[[int], HeadCall]) -> None:
        self._compiled = compiled
        self._calls: dict[int, HeadCall] = {}

    def load(self, num_rows: int) -> HeadCall:
        """The graph of so many rows, compiled when it is first asked for."""
        if num_rows not in self._calls:
            self._calls[num_rows] = self._compiled(num_rows)
        return self._calls[num_rows]
