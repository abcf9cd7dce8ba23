"""Weights are held once: a layer is in one graph, whatever segments are asked for, and sizes cost no weights."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from decoding.schedule import Schedule
from runtime.backends.backend import Preparation, segments_between
from runtime.backends.lane_device import Device
from runtime.backends.openvino.buckets import SEVERAL_TEXTS, SINGLE_ROW
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.graph import SegmentShape
from runtime.backends.openvino.layer_graphs import GraphKey
from runtime.target.target_model import TargetModel
from runtime.wire.operations import SequenceStart
from tests.runtime.reading import IDS, new_backend, read, stored_form
from tests.runtime.reading import compiled as compiled_form
from tests.tiny_models import tiny_target

STATUS = Path("/proc/self/status")
ROOT = Path(__file__).parents[4]


def graphs_of(backend):
    return sorted({key.shape[:2] for key in backend._graphs._calls})


def plan(*cuts, num_layers=4, rows=(3,), num_slots=100):
    prompt = segments_between(num_layers)
    segments = segments_between(*cuts, num_layers)
    return Preparation(num_slots=num_slots, num_prompt=40, rows=rows, segments=segments, prompt_segments=prompt)


@pytest.fixture
def compiled(monkeypatch):
    """Names of the graphs compiled since it was last cleared; copies have none, and nothing is compiled for a probe."""
    names, compile_graph, copy_graph = [], Compiler.compiled, Compiler.copy

    def counted(self, model):
        names.append(model.get_friendly_name())
        return compile_graph(self, model)

    def copied(self, content):
        names.append("a copy")
        return copy_graph(self, content)

    monkeypatch.setattr(Compiler, "compiled", counted)
    monkeypatch.setattr(Compiler, "copy", copied)
    monkeypatch.setattr(CompiledDecoder, "_probed_floor", 1)
    return names


@pytest.fixture
def copies(monkeypatch):
    """Sets of how many bytes copies of graphs may be; of none to begin with."""

    def of(num_bytes):
        monkeypatch.setattr("runtime.backends.openvino.buckets.COPIES_BYTES", num_bytes)
        monkeypatch.setattr("runtime.backends.openvino.layer_graphs.COPIES_BYTES", num_bytes)

    of(0)
    return of


@pytest.mark.usefixtures("copies")
def test_a_graph_is_compiled_once_for_all_sizes_and_again_where_it_is_cut(compiled):
    backend = new_backend()
    backend.prepare(plan(2))
    assert sorted(compiled) == ["a head", "layers 1 to 2", "layers 3 to 4"]
    compiled.clear()
    backend.prepare(plan(2, rows=(8, 16), num_slots=300))
    backend.prepare(plan())
    read(backend, [7] * 40, cuts=(2,))
    assert compiled == []
    backend.prepare(plan(3))
    assert sorted(compiled) == ["layers 3 to 3", "layers 4 to 4"]


@pytest.mark.parametrize("num_copies", [0, 1])
def test_what_is_told_before_anything_is_compiled_lets_no_layer_be_compiled_again(copies, compiled, num_copies):
    backend = new_backend()
    copies(num_copies * weights_of(backend))
    compiled.clear()
    target = TargetModel(backend, early_exit=SimpleNamespace(open=int))
    target.prepare(num_prompt=0, num_slots=16, rows=(1, 16), feature_layers=(1, 2), exit_layer=3)
    read(backend, [40, 3])
    pieces = ["layers 1 to 3", "layers 4 to 4"]
    assert sorted(name for name in compiled if name != "a head") == sorted(pieces * (1 + num_copies))
    compiled.clear()
    backend.prepare(plan(3, rows=(1, 5)))
    backend.prepare(replace(plan(rows=(1, 2), num_slots=300), states=(1,)))
    backend.prepare(replace(plan(3), states=(1, 2)))
    read(backend, [7] * 40, cuts=(3,))
    assert compiled == []


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
def test_states_on_the_way_need_no_cut_and_have_the_bits_that_a_cut_leaves(form):
    whole, cut = (compiled_form(tiny_target(max_position=400), form) for _ in range(2))
    whole.prepare(replace(plan(rows=(1, 3)), states=(1, 3, 4)))
    cut.prepare(plan(1, 3, rows=(1, 3)))
    texts = [backend.new_text() for backend in (whole, cut)]
    for text in texts:
        text.start(80)
    for count in (40, 3, 1):
        at = texts[0].cursor
        x, positions = whole.embedding(np.asarray(IDS[None, at : at + count])), np.arange(at, at + count)
        last, kept = whole.run_keeping(x, 0, 4, (1, 3, 4), positions=positions, cache=texts[0])
        assert sorted(kept) == [1, 3, 4]
        for start, stop in ((0, 1), (1, 3), (3, 4)):
            x, states = cut.run_keeping(x, start, stop, (stop,), positions=positions, cache=texts[1])
            assert np.array_equal(states[stop], kept[stop])
        assert np.array_equal(x, last)
        for text in texts:
            text.advance(count)
    assert graphs_of(whole) == [(0, 4)]
    assert graphs_of(cut) == [(0, 1), (1, 3), (3, 4)]


def test_a_graph_that_somebody_else_reads_states_of_is_compiled_once_more(copies, compiled):
    backend = new_backend()
    copies(0)
    backend.prepare(plan())
    compiled.clear()
    backend.prepare(replace(plan(), states=(2, 4)))
    backend.prepare(plan())
    backend.prepare(replace(plan(), states=(2,)))
    assert compiled == ["layers 1 to 4"]


@pytest.mark.parametrize("floor", [1, 2, 8])
def test_a_cut_target_has_a_graph_of_the_fewest_rows_that_other_calls_leave_alone(copies, floor):
    backend = new_backend()
    copies(weights_of(backend))
    backend.__dict__["_probed_floor"] = floor
    target = TargetModel(backend, early_exit=SimpleNamespace(open=int))
    target.prepare(num_prompt=0, num_slots=16, rows=(1, 16), exit_layer=2)
    assert sizes_of(backend) == {(1, floor), None}
    backend.prepare(plan(2, rows=(floor + 1,)))
    read(backend, [40, floor + 1], cuts=(2,))
    assert backend._graphs._called[GraphKey(SegmentShape(0, 2), (1, floor))] == {(1, floor, 256)}


@pytest.mark.usefixtures("copies")
def test_a_layer_is_in_one_graph_whatever_was_asked_for():
    backend = new_backend()
    expected = read(backend, [4] * 40)
    assert graphs_of(backend) == [(0, 4)]
    for cuts, graphs in (
        ((), [(0, 4)]),
        ((1,), [(0, 1), (1, 4)]),
        ((), [(0, 1), (1, 4)]),
        ((3,), [(0, 1), (1, 3), (3, 4)]),
    ):
        backend.prepare(plan(*cuts))
        assert graphs_of(backend) == graphs
        assert torch.equal(read(backend, [4] * 40, cuts=cuts), expected)


def sizes_of(backend):
    """Sizes that have a copy of their own; None for all others."""
    return {key.size for key in backend._graphs._calls}


def weights_of(backend):
    return sum(backend._layers[index].num_bytes for index in range(4))


@pytest.mark.parametrize(
    ("num_copies", "sizes"),
    [(0, {None}), (1, {SINGLE_ROW, None}), (7, {SINGLE_ROW, None}), (9, {(1, 1), (1, 3), (1, 5)})],
)
def test_calls_of_a_small_decoder_have_copies_by_their_size_which_write_the_same_bits(copies, num_copies, sizes):
    backend = new_backend()
    expected = read(backend, [40, *[3, 5, 1] * 10])
    copies(num_copies * weights_of(backend))
    backend = new_backend()
    backend.prepare(plan(rows=(1, 3, 5)))
    assert sizes_of(backend) == sizes
    assert torch.equal(read(backend, [40, *[3, 5, 1] * 10]), expected)


def test_copies_are_read_from_what_was_compiled_once_which_goes_with_them(copies, compiled):
    backend = new_backend()
    copies(9 * weights_of(backend))
    backend.prepare(plan(rows=(3, 5)))
    assert compiled.count("layers 1 to 4") == 1
    assert {shape[:2] for shape in backend._graphs._compiled} == {(0, 4)}
    backend.prepare(plan(2, rows=(3, 5)))
    assert {shape[:2] for shape in backend._graphs._compiled} == {(0, 2), (2, 4)}


def test_what_nobody_prepared_such_as_a_prompt_makes_no_copy(copies, compiled):
    backend = new_backend()
    copies(9 * weights_of(backend))
    backend.prepare(plan(rows=(3,)))
    prepared = sizes_of(backend)
    compiled.clear()
    read(backend, [40, 3, 1, 16, 40, 5])
    assert sizes_of(backend) - prepared == {None}
    assert compiled == ["a copy"]


def test_calls_over_many_branches_share_one_copy_and_all_have_their_exact_sizes(copies):
    """The draft and the exit may name the same roots, so such calls have any number of texts up to all."""
    backend = new_backend()
    copies(9 * weights_of(backend))
    backend._floor = backend._probed_floor
    assert backend._floor <= 2, "else this test says less"
    few = {(2, 1), (3, 1), (4, 1)}
    for fewest, numbers, own in ((None, {11}, set()), (2, set(range(2, 12)), few)):
        backend.prepare(replace(plan(rows=(1, 3)), num_branches=11, least_branches=fewest))
        assert sizes_of(backend) == {SINGLE_ROW, (1, 3), SEVERAL_TEXTS, *own}
        called = {size[0] for key, sizes in backend._graphs._called.items() for size in sizes if key.size[0] != 1}
        assert called == numbers
        backend.prepare(plan())


@pytest.mark.parametrize(
    ("floor", "most", "fewest", "numbers"),
    [
        (1, 11, None, {11}),
        (1, 5, 2, {2, 3, 4, 5}),
        (4, 6, 2, {4, 5, 6}),
        (8, 6, 2, {8}),
        (8, 6, None, {8}),
        (4, 0, None, set()),
    ],
)
def test_no_call_over_branches_has_fewer_than_rows_keep_their_bits_from(floor, most, fewest, numbers):
    backend = new_backend()
    backend.__dict__["_probed_floor"] = floor
    backend.prepare(replace(plan(), num_branches=most, least_branches=fewest))
    assert backend._num_texts == numbers


def test_copies_that_were_not_used_for_longest_make_room(copies, compiled):
    backend = new_backend()
    copies(9 * weights_of(backend))
    for rows in (2, 3, 4, 5, 6, 7, 8, 9, 12):
        backend.prepare(plan(rows=(1, rows)))
    assert sizes_of(backend) == {(1, rows) for rows in (1, 3, 4, 5, 6, 7, 8, 9, 12)}
    compiled.clear()
    backend.prepare(plan(rows=(1, 3, 12)))
    assert compiled == []
    backend.prepare(plan(rows=(1, 2)))
    assert compiled == ["a copy"]


@pytest.mark.parametrize(("rows", "expected"), [((1, 8), {SINGLE_ROW: {1}, None: {8}}), ((8,), {None: {8}})])
def test_a_single_row_is_never_filled_up_to_what_a_sequence_planned(copies, rows, expected):
    backend = new_backend()
    copies(weights_of(backend))
    backend.prepare(plan(rows=rows))
    called = {key.size: {size[1] for size in sizes} for key, sizes in backend._graphs._called.items()}
    assert called == expected
    read(backend, [40, 1, 3, 1, 8])
    assert {size[1] for size in backend._graphs._inputs} == {1, 8, 64}


@pytest.mark.parametrize(
    ("method", "sizes"),
    [("autoregressive", {None}), ("speculative", {None}), ("prompt_lookup", {SINGLE_ROW, None})],
)
def test_a_middling_target_has_one_graph_unless_only_some_windows_are_empty(copies, compiled, method, sizes):
    backend = new_backend()
    copies(weights_of(backend))
    drafted = {} if method == "autoregressive" else {"draft_lane": "b", "drafter": "d", "num_speculative_tokens": 4}
    schedule = Schedule(method=method, target_lane="a", **drafted)
    start = SequenceStart(prompt=(3, 4, 5), max_new_tokens=8, schedule=schedule, temperature=0.0, seed=0)
    target = TargetModel(backend, early_exit=None)
    target.prepare(num_prompt=len(start.prompt), num_slots=start.num_slots, rows=start.window_rows)
    assert sizes_of(backend) == sizes
    compiled.clear()
    read(backend, [40, 1, 5])
    assert not [name for name in compiled if name.startswith("layers")], "a prompt waits for no compiler"


@pytest.mark.usefixtures("compiled")
def test_a_middling_decoder_keeps_one_copy_of_each_layer(copies):
    backend = new_backend()
    copies(7 * weights_of(backend))
    for rows in ((2, 5), (3, 5), (1, 5)):
        backend.prepare(plan(2, rows=rows))
        assert sizes_of(backend) == {(1, rows[0]), None}
        assert len(backend._graphs._calls) == 4


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_decoder_has_no_matrices_of_its_own_once_they_are_rounded(form):
    stored = stored_form(tiny_target(max_position=400).to(torch.bfloat16))
    backend = CompiledDecoder(stored, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1)
    backend.prepare(plan())
    assert {array.ndim for layer in stored.layers for array in layer.values()} == {1}


@pytest.mark.skipif(not STATUS.exists(), reason="resident memory is read from /proc")
def test_a_target_with_an_exit_takes_its_weights_once():
    """In processes of their own: what other tests have left there would be given back meanwhile."""
    # calls over many rows may have a layout of rounded weights of their own, in int8
    layouts = {"bfloat16": 1.3, "int8": 2, "int4": 2.5}
    command = [sys.executable, "-m", "tests.runtime.backends.openvino.weights_once", *layouts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for form, (weights, once, after_all) in json.loads(done.stdout).items():
        assert once > 0.8 * weights, form
        # a process that computes for the first time takes 30 to 40 MB besides; a copy for every graph would be three
        # more
        assert after_all < layouts[form] * weights + 40e6, form
