"""A decoder that OpenVINO computes, by graphs that hold every weight once where sizes may stay open (CPUs).

What was tried for that (OpenVINO 2026.4, CPU, resident memory): compiled graphs of fixed sizes each repack the weights
for themselves, however their constants are shared, mapped or cached without weights; one graph of open rows and slots
repacks them once at its first call and says the same bits for any number of rows. It costs some percent of a step more,
and much more where the number of rows changes from call to call, which is why small decoders have copies (`buckets`).
Such a graph is compiled in every process, and not kept on disk: reading it is faster than compiling, but takes the
weights once more on the disk for every way to cut the layers, and as much memory while it is read.

Hidden states cross as float32 and are rounded to the type of arithmetic on both sides of a cut, as between two layers.
The embedding is looked up here: a graph of it would hold a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from runtime.backends.backend import Head, Plan, Segment
from runtime.backends.openvino.buckets import PROMPT_ROWS, pieces, slot_buckets
from runtime.backends.openvino.calls import HeadCall
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.constants import Constants
from runtime.backends.openvino.graph import ANY, head_graph, require_architecture
from runtime.backends.openvino.layer_graphs import LayerGraphs
from runtime.backends.openvino.layer_weights import LayersTaken
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.limits import Limits, limits_of
from runtime.backends.openvino.packing import Form, Matrix, arithmetic, packed
from runtime.backends.openvino.row_floor import PROBED_ROWS, row_floor
from runtime.backends.openvino.texts import BranchRows, Rows, StaticBranches, StaticText, WindowThenBranches
from runtime.models.decoder import Decoder


class OpenVinoBackend:
    """Implements `runtime.backends.backend.Backend` on a device of OpenVINO."""

    has_open_keys: bool = False
    device = torch.device("cpu")
    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (4, 8), (8, 4), (8, 1, 3))

    def __init__(self, decoder: Decoder, *, device: str, form: Form, num_threads: int) -> None:
        """Args: its weights, which graphs may take over; OpenVINO's name of a device; their form; threads of a call.

        Raises:
            ModelError: the architecture has no graph.
        """
        require_architecture(decoder.config)
        self.config, self._decoder = decoder.config, decoder
        self._limits = limits_of(device)
        self._form, self.dtype = form, arithmetic(form)
        self._kept_dtype = arithmetic(form, self._limits.half)
        self._compiler = Compiler(device, form, num_threads)
        self._layers, self._constants = LayersTaken(decoder, form, self._kept_dtype), Constants(self._kept_dtype)
        self._graphs = self._new_graphs()
        self._rows: set[int] = set()
        self._num_texts: set[int] = set()
        self._heads: list[HeadGraphs] = []
        self._floor = 1
        # of the rows that have passed some layers: masks are made once for a pass, however often it is cut
        self._under_way: tuple[tuple[Tensor, Tensor | None, StaticText], list[tuple[int, int, Rows]]] | None = None
        self._head = self._new_head(decoder.lm_head.weight)

    def new_text(self) -> StaticText:
        """Room for a text."""
        return StaticText(self.config, self._kept_dtype)

    def new_branches(self, num_branches: int) -> StaticBranches:
        """Room for branches of a text."""
        most = self._bucket(num_branches) if num_branches else 0
        return StaticBranches(self.config, num_branches, self._kept_dtype, room=num_branches + most)

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
        self._num_texts = self._numbers_of_texts(plan)
        sizes = [size for size in slot_buckets(plan.num_slots) if size > plan.least_slots]
        self._graphs.cut([*plan.segments, *plan.prompt_segments])
        for segment in plan.segments:
            self._make_ready(segment, [(1, count) for count in self._rows | self._single], sizes)
            self._make_ready(segment, [(count, 1) for count in self._num_texts], sizes)
        if not self._limits.has_open_sizes:
            for segment in plan.prompt_segments:
                self._make_ready(segment, [(1, count) for count in PROMPT_ROWS], slot_buckets(plan.num_prompt))
        for head in self._heads:
            for count in self._rows | self._num_texts:
                head.make_ready(count)

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
        return self._run_text(x_BTD, (start, stop), positions, mask, cache)

    def normalise(self, x: Tensor) -> Tensor:
        """The final norm alone."""
        return self._decoder.normalise(x.to(self._decoder.final_norm.dtype))

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Final norm and output head."""
        return self._head(self.normalise(x_BTD))

    def head(self, rows_VD: Tensor) -> Head:
        """A head of other rows; the first ones of the decoder's own are computed by its own."""
        own_VD = self._decoder.lm_head.weight
        if rows_VD.data_ptr() == own_VD.data_ptr() and rows_VD.stride() == own_VD.stride():
            return lambda x: self._head(x)[..., : len(rows_VD)]
        return self._new_head(rows_VD)

    def on_host(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """They are there."""
        return tensors

    def wait(self) -> None:
        """Nothing is under way."""

    def _run_text(
        self, x_BTD: Tensor, segment: Segment, positions: Tensor, mask: Tensor | None, text: StaticText
    ) -> Tensor:
        """Rows of a text, in as many calls as there are graphs for."""
        known, given = self._under_way, (positions, mask, text)
        if segment[0] and known is not None and all(one is other for one, other in zip(known[0], given, strict=True)):
            calls = known[1]
        else:
            calls = self._calls(x_BTD.shape[1], mask, text)
        self._under_way = None if segment[1] == self.config.num_layers else (given, calls)
        done = [self._run(x_BTD[:, first:last], segment, positions[first:last], rows) for first, last, rows in calls]
        return done[0] if len(done) == 1 else torch.cat(done, dim=1)

    def _calls(self, num_rows: int, mask: Tensor | None, text: StaticText) -> list[tuple[int, int, Rows]]:
        """First and last row of every call, and where they go: in the text's order, or by a mask, all at once."""
        if mask is not None:
            return [(0, num_rows, text.rows(num_rows, mask))]
        cursor, found = text.cursor, []
        for first, last in pieces(num_rows, self._rows | set(PROMPT_ROWS)):
            text.set_length(cursor + first)
            found.append((first, last, text.rows(last - first, None)))
        text.set_length(cursor)
        return found

    def _window_then_branches(
        self, x_BTD: Tensor, segment: Segment, positions: Tensor, both: WindowThenBranches
    ) -> Tensor:
        count, text = both.num_window, both.text
        window = self._run_text(x_BTD[:, :count], segment, positions[:count], None, text)
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
        rotary = self._decoder.rotary

        def rotation() -> tuple[Tensor, Tensor]:
            return rotary.cos_PH[positions], rotary.sin_PH[positions]

        return self._graphs.run(x_BTD, segment, (num_texts, num_rows), rotation, rows).to(self.dtype)

    def _make_ready(self, segment: Segment, counts: Iterable[tuple[int, int]], slots: Sequence[int]) -> None:
        """Have the graphs of a segment for so many texts and rows."""
        for num_texts, num_rows in counts:
            for num_slots in slots:
                self._graphs.make_ready(segment, num_texts, num_rows, num_slots)

    def _numbers_of_texts(self, plan: Plan) -> set[int]:
        """Those of calls over branches: exact ones where sizes are open, since a text more costs as much as a row."""
        if not plan.num_branches:
            return set()
        if not self._limits.has_open_sizes:
            return {self._bucket(plan.num_branches)}
        counts = range(plan.least_branches or plan.num_branches, plan.num_branches + 1)
        return {max(count, self._floor) for count in counts}

    def _new_graphs(self) -> LayerGraphs:
        return LayerGraphs(self.config, self._layers, self._compiler, self._limits, self._constants)

    @cached_property
    def _probed_floor(self) -> int:
        generator = torch.Generator().manual_seed(0)
        prompt, total = 20, PROBED_ROWS[-1]
        x_BTD = self.embedding(torch.randint(self.config.vocab_size, (1, prompt + total), generator=generator))

        whole, self._graphs = self._graphs, self._new_graphs()  # of one layer

        def read(count: int) -> Tensor:
            text, found = self.new_text(), []
            text.start(prompt + total)
            for stop in (prompt, *range(prompt + count, prompt + total, count), prompt + total):
                self._rows = {PROBED_ROWS[-1] if stop == prompt else count}
                positions = torch.arange(text.cursor, stop)
                found.append(self._run_text(x_BTD[:, text.cursor : stop], (0, 1), positions, None, text))
                text.set_length(stop)
            return torch.cat(found, dim=1)

        floor = row_floor(read)
        self._graphs = whole
        return floor

    def _bucket(self, count: int) -> int:
        """Rows of the graph that serves so many."""
        return self._limits.bucket(max(count, self._floor))

    def _size(self, count: int, planned: Iterable[int]) -> int:
        """The least of the sizes planned that is large enough; without one, that of any graph.

        Open graphs never fill a single row up: what is timed next to a sequence is not planned, nor need be.
        """
        return min((size for size in self._single.union(planned) if size >= count), default=self._bucket(count))

    @property
    def _single(self) -> set[int]:
        """The size of single rows, if they are never filled up further."""
        return {self._bucket(1)} if self._limits.has_open_sizes else set()

    def _new_head(self, rows_VD: Tensor) -> Head:
        form: Form = "int8" if self._form == "int4" else self._form  # what int4 would cost most
        matrix = packed(rows_VD, form, self._kept_dtype)
        head = HeadGraphs(matrix, self._compiler, self._limits, self._constants)
        self._heads.append(head)

        def logits(x: Tensor) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            found = head(flat, self._size(len(flat), self._rows | self._num_texts))
            return found.view(*x.shape[:-1], -1)

        return logits


class HeadGraphs:
    """The graphs of a head: one where sizes may stay open, else one for every number of rows."""

    def __init__(self, matrix_VD: Matrix, compiler: Compiler, limits: Limits, constants: Constants) -> None:
        self._matrix, self._compiler, self._limits, self._constants = matrix_VD, compiler, limits, constants
        self._calls: dict[int, HeadCall] = {}
        self._ready: set[int] = set()

    def __call__(self, x_TD: Tensor, num_rows: int) -> Tensor:
        """Logits [T, V] of normalised hidden states, by a call of so many rows."""
        return self._call(num_rows)(x_TD, num_rows)

    def make_ready(self, num_rows: int) -> None:
        """Have the graph of so many rows, and have it called once if it has others too."""
        call = self._call(num_rows)
        if self._limits.has_open_sizes and num_rows not in self._ready:
            call(torch.zeros(0, self._matrix.shape[1]), num_rows)
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
