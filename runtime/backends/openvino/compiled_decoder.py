"""Implements the back end by OpenVINO.

On CPUs graphs have dynamic shapes: such a graph packs its weights once, at its first call, and gives a row the same
bits for any number of rows. It is not kept on disk: reading it would take memory for the weights once more for every
way to cut the layers. Hidden states between graphs are float32. The embedding is looked up in numpy: a graph would
copy it.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import FLOAT32, inference
from runtime.backends.backend import Backend, Head, Preparation, cut_at_states
from runtime.backends.kv_memory import BranchRows, Segment
from runtime.backends.lane_device import Device, Dtype
from runtime.backends.openvino.buckets import PROMPT_ROWS, limits_of, pieces
from runtime.backends.openvino.compiler import Compiler, type_of_products
from runtime.backends.openvino.disk_cache import kept_block
from runtime.backends.openvino.graph import Constants, require_architecture
from runtime.backends.openvino.graph_calls import Floats
from runtime.backends.openvino.kv_buffers import SUMMED_ALIKE, CallRows, GrowingBranches, GrowingCache, GrowingMemory
from runtime.backends.openvino.layer_graphs import HeadGraphs, LayerGraphs, compiled_adapter
from runtime.backends.openvino.packing import PackedLayers, arithmetic, digest_of, packed
from runtime.backends.self_test import PROBED_ROWS, row_floor
from runtime.instruction_set import chosen_by
from runtime.storage.stored_decoder import StoredDecoder
from runtime.wire.channel import Block, to_array

_MOST_PROBED_CALLS: Final = 8
"""Most calls for one number of rows in a probe, which in all takes as long as some tens of calls of one layer."""


class CompiledDecoder(Backend):
    """Implements `runtime.backends.backend.Backend` on a device of OpenVINO; arrays are numpy's."""

    device: Any = None
    self_test_chunks: tuple[tuple[int, ...], ...] = ((1,) * 12, (4, 8), (8, 4), (8, 1, 3))

    def __init__(self, stored: StoredDecoder, *, device: Device, form: Dtype, num_threads: int) -> None:
        """Take the weights, some of which are removed from `stored`; raise `ModelError` for an unsupported model."""
        require_architecture(stored.config)
        self.config, self._stored = stored.config, stored
        self._limits, self._is_dynamic = limits_of(device), device.has_dynamic_shapes
        self.has_layouts = self._is_dynamic
        self._form, self._kept_dtype = form, arithmetic(form, self._limits.half)
        self.dtype: Any = arithmetic(form)
        self._arithmetic = FLOAT32 if self._kept_dtype == FLOAT32 else arithmetic(form)
        self._compiler = Compiler(device, form, num_threads)
        self._layers = PackedLayers(stored, form, self._kept_dtype)
        self._constants = Constants(self._kept_dtype, type_of_products(device, self._kept_dtype))
        self._graphs = self._new_graphs()
        self._rows: set[int] = set()
        self._num_texts: set[int] = set()
        self._heads: list[HeadGraphs] = []
        self._floor = 1
        self.self_test_fills = (device.num_slots(0) - device.spare_slots - len(self.self_test_chunks[0]) // 2,)
        self.most_branched_positions = SUMMED_ALIKE - device.spare_slots if self._is_dynamic else None
        self._head = self._new_head(stored.lm_head.weight)

    @property
    def least_rows(self) -> int:
        """See `Backend`; it is known once a sequence was prepared."""
        return self._floor

    def new_text(self) -> GrowingCache:
        """See `Backend`."""
        return GrowingCache(self._new_memory(1))

    def new_branches(self, num_branches: int) -> GrowingBranches:
        """See `Backend`."""
        self._graphs.forget_branches()
        if not num_branches:
            return GrowingBranches(self._new_memory(0), 0)
        filled_up = self._probed_floor - 1 if self._is_dynamic else self._bucket(num_branches)
        return GrowingBranches(self._new_memory(num_branches + filled_up), num_branches)

    def _new_memory(self, num_texts: int) -> GrowingMemory:
        return GrowingMemory(self.config, num_texts, self._kept_dtype, self._limits.device)

    def prepare(self, plan: Preparation) -> None:
        """Compile a sequence's graphs; raise `ConfigError` if it is too large, `LaneError` if OpenVINO refuses one."""
        device = self._limits.device
        plan = plan if self._is_dynamic else cut_at_states(plan)
        self._limits.require(plan)
        if not device.is_npu:
            self._floor = self._probed_floor
        self._rows = {self._bucket(count) for count in plan.rows}
        self._num_texts = self._numbers_of_texts(plan)
        self._graphs.cut([*plan.segments, *plan.prompt_segments])
        self._graphs.show(plan.states)
        counts = [*((1, count) for count in self._rows), *((count, 1) for count in self._num_texts)]
        sizes = [size for size in device.slot_sizes(plan.num_slots) if size > plan.least_slots]
        self._graphs.make_ready(plan.segments, counts, sizes)
        if not self._is_dynamic:
            counts = [(1, count) for count in PROMPT_ROWS]
            self._graphs.make_ready(plan.prompt_segments, counts, device.slot_sizes(plan.num_prompt))
        for head in self._heads:
            for count in self._rows | self._num_texts:
                head.make_ready(count)

    def embedding(self, ids: NDArray[np.int64]) -> Floats:
        """See `Backend`."""
        return self._stored.embedded(ids)

    def normalise(self, x: Floats) -> Floats:
        """Apply the final norm and round to the type of arithmetic, so that all heads read the same numbers."""
        return self._stored.normalise(x).astype(self._arithmetic).astype(np.float32)

    def logits(self, x_BTD: Floats) -> Floats:
        """See `Backend`; the graph of the head rounds its input."""
        logits: Floats = self._head(self._stored.normalise(x_BTD))
        return logits

    def head(self, rows_VD: NDArray[Any]) -> Head:
        """See `Backend`; the first rows of the decoder's `lm_head` are computed by its graph."""
        lm_head_VD, head = self._stored.lm_head.weight, self._head
        if rows_VD.ctypes.data == lm_head_VD.ctypes.data and rows_VD.strides == lm_head_VD.strides:
            return lambda x: head(x)[..., : len(rows_VD)]
        return self._new_head(rows_VD)

    def product(self, weight_OI: NDArray[Any]) -> Head:
        """See `Backend`; it does not quantise, as adapters are near the identity and features are added to states."""
        return self._new_head(weight_OI, "float32" if self._form == "float32" else "bfloat16")

    def prompt_head(self, rows_ED: NDArray[Any]) -> Head:
        """See `Backend`; in numpy, as a graph does not pay for few outputs, and row by row, so that bits are alike."""
        wide_ED = rows_ED.astype(np.float32)

        def logits(x: Floats) -> Floats:
            found = [wide_ED @ row for row in x.reshape(-1, x.shape[-1])]
            return np.stack(found).reshape(*x.shape[:-1], len(wide_ED))

        return logits

    def adapter(self, weights: Any) -> Head:
        """See `Backend`; `weights` are arrays by name."""
        return compiled_adapter(weights, partial(CompiledDecoder.product, self), self.config.norm_eps)

    def features(self, hidden_TED: Floats, *, is_raw: bool) -> NDArray[Any]:
        """See `Backend`."""
        features_TE: NDArray[Any] = super().features(hidden_TED, is_raw=is_raw).astype(self.dtype)
        return features_TE

    def array(self, block: Block) -> Floats:
        """See `Backend`."""
        return to_array(block).astype(np.float32)

    @inference
    def run_keeping(
        self,
        x_BTD: Floats,
        start: int,
        stop: int,
        states: Collection[int],
        *,
        positions: NDArray[np.int64],
        mask: NDArray[np.float32] | None = None,
        cache: Any,
    ) -> tuple[Floats, dict[int, Floats]]:
        """See `Backend`; a graph of dynamic shape returns all states in one call.

        States before the last layer are rounded to the type between layers, as they may come from the end of a graph or
        from within one.
        """
        if start == stop or not self._is_dynamic:
            where = {"positions": positions, "mask": mask, "cache": cache}
            return super().run_keeping(x_BTD, start, stop, states, **where)
        wanted = [layer for layer in sorted(states) if start < layer < stop]
        found = self._run_calls(x_BTD, (start, stop), wanted, positions, mask, cache)
        inner = len(wanted) + (stop < self.config.num_layers)
        found[:inner] = [x_BTD.astype(self._kept_dtype).astype(np.float32) for x_BTD in found[:inner]]
        kept = dict(zip((*wanted, stop), found, strict=True))
        return found[-1], {layer: kept[layer] for layer in kept if layer in states}

    def _run_rows(self, x_BTD: Floats, segment: Segment, positions: Any, mask: Any, cache: Any) -> Floats:
        [x_BTD] = self._run_calls(x_BTD, segment, (), positions, mask, cache)
        return x_BTD

    def _run_calls(
        self, x_BTD: Floats, segment: Segment, states: Collection[int], positions: Any, mask: Any, cache: Any
    ) -> list[Floats]:
        """Return the hidden states after some layers of a segment, ascending, and after its last one."""
        if isinstance(cache, BranchRows):
            return self._run(x_BTD, segment, states, positions, cache.call)
        sizes, position_list, done = self._rows | set(PROMPT_ROWS), positions.tolist(), []
        for start, stop in cache.parts(position_list):
            cuts = pieces(stop - start, sizes) if mask is None else [(0, stop - start)]
            for cut_start, cut_stop in cuts:
                first, last = start + cut_start, start + cut_stop
                seen = None if mask is None else mask[first:last, : cache.cursor + last]
                rows = cache.rows(first, position_list[first:last], seen)
                done.append(self._run(x_BTD[:, first:last], segment, states, positions[first:last], rows))
        return done[0] if len(done) == 1 else [np.concatenate(parts, axis=1) for parts in zip(*done, strict=True)]

    def _run(
        self,
        x_BTD: Floats,
        segment: Segment,
        states: Collection[int],
        positions: NDArray[np.int64],
        rows: CallRows,
    ) -> list[Floats]:
        num_texts, num_rows, _ = x_BTD.shape
        if num_texts == 1:
            num_rows = self._size(num_rows, self._rows | set(PROMPT_ROWS))
        else:
            num_texts = self._size(num_texts, self._num_texts)
        cos_PH, sin_PH = self._stored.rotary
        rotation = cos_PH[positions], sin_PH[positions]
        return self._graphs.run(x_BTD, segment, states, (num_texts, num_rows), rotation, rows)

    def _numbers_of_texts(self, plan: Preparation) -> set[int]:
        """Return the numbers of texts of calls over branches: all with dynamic shapes, else only the largest."""
        if not plan.num_branches:
            return set()
        if not self._is_dynamic:
            return {self._bucket(plan.num_branches)}
        counts = range(plan.least_branches or plan.num_branches, plan.num_branches + 1)
        return {max(count, self._floor) for count in counts}

    def _new_graphs(self) -> LayerGraphs:
        return LayerGraphs(self.config, self._layers, self._compiler, self._limits, self._constants)

    @cached_property
    def _probed_floor(self) -> int:
        """The result of `_probe`, kept on disk for this CPU if the system describes it."""
        if not (processor := chosen_by()):
            return self._probe()
        weights = [self._layers[0].digest(), digest_of(self._stored.lm_head.weight)]
        asked = {"rows": [PROBED_ROWS, _MOST_PROBED_CALLS], "processor": processor, "weights": weights}
        key = self._compiler.key({**asked, "config": asdict(self.config)})
        return int(kept_block(key, 8, lambda: [np.array([self._probe()])]).view(np.int64)[0])

    def _probe(self) -> int:
        """Return the fewest rows that calls need for batch invariance (`row_floor`), by graphs of the first layer."""
        prompt, total = 20, PROBED_ROWS[-1]
        ids = np.random.default_rng(0).integers(self.config.vocab_size, size=(1, prompt + total))
        x_BTD = self._stored.embedded(ids)

        whole, self._graphs = self._graphs, self._new_graphs()

        def read(count: int) -> Floats:
            text, found = self.new_text(), []
            text.start(prompt + total)
            last = prompt + min(total, _MOST_PROBED_CALLS * count)
            for stop in (prompt, *range(prompt + count, last + 1, count)):
                self._rows = {total if stop == prompt else count}
                rows = slice(text.cursor, stop)
                positions = np.arange(text.cursor, stop) % self.config.max_position  # which may be less
                x_BTD_after = self._run_rows(x_BTD[:, rows], (0, 1), positions, None, text)
                if stop > prompt:
                    found += [x_BTD_after, self.logits(x_BTD_after)]
                text.set_length(stop)
            return np.concatenate([np.concatenate(found[part::2], axis=1) for part in (0, 1)], axis=2)

        floor = row_floor(read)
        self._graphs = whole
        return floor

    def _bucket(self, count: int) -> int:
        return self._limits.bucket(max(count, self._floor))

    def _size(self, count: int, planned: Iterable[int]) -> int:
        """Return the smallest planned size that has `count`, else a graph's; dynamic graphs do not pad a single row."""
        single = [self._bucket(1)] if self._is_dynamic else []
        return min((size for size in (*single, *planned) if size >= count), default=self._bucket(count))

    def _new_head(self, rows_VD: NDArray[Any], form: Dtype | None = None) -> Head:
        form = form or ("int8" if self._form == "int4" else self._form)  # int4 harms heads most
        matrix = packed(rows_VD, form, self._kept_dtype)
        head = HeadGraphs(matrix, self._compiler, self._limits, self._constants)
        self._heads.append(head)

        def logits(x: Floats) -> Floats:
            flat, planned = x.reshape(-1, x.shape[-1]), self._rows | self._num_texts
            most = self._limits.rows[-1] if self._limits.rows else max(1, len(flat))
            parts = [flat[start : start + most] for start in range(0, max(1, len(flat)), most)]
            found = [head(part, self._size(len(part), planned)) for part in parts]
            return (found[0] if len(found) == 1 else np.concatenate(found)).reshape(*x.shape[:-1], len(rows_VD))

        return logits
