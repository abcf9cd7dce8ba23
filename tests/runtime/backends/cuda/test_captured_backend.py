"""Captured calls compute what the decoder computes; here the CPU calls the same functions on the same buffers."""

import sys
import threading
import weakref
from functools import cache
from subprocess import CalledProcessError
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import LaneError, MemoryFitError
from runtime.backends.backend import Preparation, segments_between, tree_rows
from runtime.backends.cuda import captured_backend, captured_calls
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import (
    GPU,
    ROWS,
    SPARE,
    CapturedCall,
    GraphCapture,
    pieces,
    row_bucket,
    text_bucket,
)
from runtime.backends.cuda.split_attention import HIDDEN, LEAST_CHUNK, attend_in_chunks, is_split, mask_of_chunks
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device
from runtime.backends.self_test import is_row_invariant
from runtime.garbage_collection import no_collection
from runtime.models.decoder import Layer
from runtime.worker import torch_models
from tests.runtime import reading
from tests.runtime.engine.schedules import CHAINS, SCHEDULES, for_folders
from tests.runtime.reading import read
from tests.runtime.thread_lanes import thread_engine
from tests.tiny_models import OPT, VOCAB_SIZE, tiny_target

SHAPES = reading.SHAPES | {"learned positions": OPT}
FIRST_LIMIT = GPU.num_slots(0) - SPARE
"""Slots of a text within the smallest number that a call looks at."""
IDS = torch.randint(VOCAB_SIZE, (FIRST_LIMIT + 40,), generator=torch.Generator().manual_seed(1))


@cache
def decoder_of(shape):
    return tiny_target(**SHAPES[shape], max_position=400)


@cache
def backend_of(shape):
    return CudaBackend(decoder_of(shape), device="cpu")


@cache
def one_by_one(shape):
    return read(backend_of(shape), [1] * len(IDS), ids=IDS)


@given(st.integers(0, 20_000), st.integers(1, 700))
def test_pieces_cover_their_rows_and_each_looks_at_the_slots_of_its_rows_alone(first, num_rows):
    found = list(pieces(first, num_rows))
    assert [start for start, _ in found] == [0, *[stop for _, stop in found[:-1]]]
    assert found[-1][1] == num_rows
    for start, stop in found:
        assert 0 < stop - start <= ROWS[-1]
        sizes = {GPU.num_slots(slot + 1) for slot in range(first + start, first + stop)}
        assert sizes == {GPU.num_slots(first + stop)}
        assert first + start + row_bucket(stop - start) <= sizes.pop()
    assert text_bucket(num_rows) >= num_rows


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_logits_are_the_decoders(shape):
    expected = read(EagerBackend(decoder_of(shape)), [len(IDS)], ids=IDS)
    found = one_by_one(shape)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    assert torch.allclose(found, expected, atol=2e-3, rtol=1e-3)
    assert not torch.allclose(found[:-1], expected[1:], atol=0.5)


@pytest.mark.parametrize("shape", SHAPES)
@given(chunks=st.lists(st.integers(1, 30), min_size=1, max_size=12), cut=st.booleans())
@settings(max_examples=6)
def test_a_row_has_the_same_bits_in_any_chunk_with_any_cut_and_on_both_sides_of_a_limit(shape, chunks, cut):
    found = read(backend_of(shape), [*chunks, len(IDS)], ids=IDS, cuts=(1,) * cut)
    assert torch.equal(found, one_by_one(shape))


def test_float32_logits_over_keys_in_chunks_are_the_decoders_also_of_a_tree():
    decoder = tiny_target(**SHAPES["grouped queries"], max_position=1500)
    ids = torch.randint(VOCAB_SIZE, (1290,), generator=torch.Generator().manual_seed(2))
    parents = (-1, 0, 0, -1, 3)
    expected, found = (
        torch.cat([read(backend, [1270, 1, 6, 13], ids=ids), tree_logits(backend, ids, parents)])
        for backend in (EagerBackend(decoder), CudaBackend(decoder, device="cpu"))
    )
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    assert torch.allclose(found, expected, atol=2e-3, rtol=1e-3)


def tree_logits(backend, ids, parents):
    """Logits of a tree whose root is in the last slot before a chunk's end, so that nodes see nothing of the next."""
    text, first, tree = backend.new_text(), 5 * LEAST_CHUNK - 1, tree_rows(parents)
    text.start(first + len(parents) + 1)
    for last, count in ((first, first), (first + len(parents) + 1, len(parents) + 1)):
        is_tree = last > first
        positions = tree.depths + first if is_tree else np.arange(count)
        mask = tree.mask(first) if is_tree else None
        x = backend.embedding(ids[None, last - count : last].numpy())
        x = backend.run_layers(x, 0, 4, positions=positions, mask=mask, cache=text)
        text.advance(count if not is_tree else 0)
    return backend.logits(x)[0]


def test_a_call_without_a_mask_forgets_that_of_a_tree_before():
    backend, ids = CudaBackend(decoder_of("grouped queries"), device="cpu"), IDS[:9]
    text = backend.new_text()
    text.start(20)
    hidden = np.triu(np.full((9, 9), -np.inf, np.float32), 1) + np.tril(np.full((9, 9), -np.inf, np.float32), -1)
    x = backend.embedding(ids[None].numpy())
    alone, whole = (
        backend.run_layers(x, 0, 4, positions=np.arange(9), mask=mask, cache=text) for mask in (hidden, None)
    )
    assert not torch.allclose(alone, whole)
    assert torch.equal(
        backend.logits(whole)[0], read(CudaBackend(decoder_of("grouped queries"), device="cpu"), [9], ids=ids)
    )


@given(st.data())
@settings(max_examples=20)
def test_chunks_add_up_to_the_attention_over_all_keys_also_where_some_are_hidden_whole(data):
    batch, heads, num_keys = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from((1024, 1536))))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    q, mask = torch.randn(batch, heads, 8, 16), torch.zeros(batch, 1, 8, num_keys)
    slots = torch.randn(2, batch, heads, num_keys + 128, 16)
    k, v = slots[:, :, :, :num_keys]
    for row in range(8):
        mask[:, :, row, data.draw(st.integers(1, num_keys)) :] = HIDDEN
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(attend_in_chunks(q, k, v, mask_of_chunks(mask, heads)), expected, atol=1e-5)


@pytest.fixture
def failing_triton(monkeypatch):
    """Make Triton fail with an error."""

    def make(error):
        def fuse(decoder):
            raise error

        monkeypatch.setattr(captured_backend, "find_spec", lambda name: name)
        monkeypatch.setitem(sys.modules, "runtime.backends.cuda.fused_layers", SimpleNamespace(fuse=fuse))

    return make


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler."),
        CalledProcessError(1, "cc"),
        PermissionError(13, "Permission denied"),
    ],
)
def test_where_triton_cannot_compile_torchs_kernels_compute_the_layers(failing_triton, error):
    failing_triton(error)
    decoder = decoder_of("grouped queries")
    captured_backend.fuse_layers(decoder)
    assert {type(layer) for layer in decoder.layers} == {Layer}


def test_a_full_disk_is_no_reason_to_compute_other_bits(failing_triton):
    failing_triton(OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        captured_backend.fuse_layers(decoder_of("grouped queries"))


def test_the_self_test_says_so():
    assert is_row_invariant(backend_of("grouped queries"))


def test_the_self_test_compares_calls_of_windows_over_few_slots_and_over_those_read_in_chunks(monkeypatch):
    found, call = set(), CapturedCall.__call__

    def noted(self, *given):
        found.add((self.places_BT.shape[1], self.slots(0)[0].shape[2]))
        return call(self, *given)

    monkeypatch.setattr(CapturedCall, "__call__", noted)
    backend = CudaBackend(tiny_target(max_position=700), device="cpu")
    assert is_row_invariant(backend)
    for count in (8, 16):  # windows of up to 15 tokens; a failure of 32 rows would hide what goes wrong with fewer
        assert {(count, GPU.num_slots(1)), (count, GPU.num_slots(641))} <= found
    assert not is_split(GPU.num_slots(640))
    assert is_split(GPU.num_slots(641))


def test_prepared_calls_serve_the_sequence_and_no_others_are_made():
    backend = CudaBackend(decoder_of("grouped queries"), device="cpu")
    text = backend.new_text()
    whole = segments_between(2, 4)
    plan = Preparation(num_slots=len(IDS), num_prompt=60, rows=(1, 5), segments=whole, prompt_segments=((0, 4),))
    backend.prepare(plan)
    made = dict(text.memory.calls)
    text.start(len(IDS))
    for count, cuts in ((59, ((0, 4),)), *[(5, whole)] * 30, *[(1, whole)] * 3):
        x = backend.embedding(IDS[None, text.cursor : text.cursor + count])
        for start, stop in cuts:
            positions = torch.arange(text.cursor, text.cursor + count)
            x = backend.run_layers(x, start, stop, positions=positions, cache=text)
            text.set_length(text.cursor)
        text.advance(x.shape[1])
        if text.cursor + 5 > len(IDS):
            break
    assert text.cursor > FIRST_LIMIT
    assert text.memory.calls == made


def test_calls_and_slots_that_were_outgrown_are_gone_at_once(monkeypatch):
    monkeypatch.setattr(GraphCapture, "captured", lambda _, run: (run(), lambda: None)[1])
    backend = CudaBackend(decoder_of("grouped queries"), device="cpu")
    text = backend.new_text()
    text.start(9)
    with no_collection():
        read(backend, [9], ids=IDS[:9], text=text)
        (call,) = map(weakref.ref, text.memory.calls.values())
        slots = weakref.ref(text.memory.slots)
        text.start(1000)
        assert call() is None
        assert slots() is None


def test_a_text_longer_than_what_was_reserved_is_refused_with_both_numbers():
    backend = backend_of("grouped queries")
    text, branches = backend.new_text(), backend.new_branches(2)
    text.start(10)
    branches.start(10)
    room = FIRST_LIMIT
    text.set_length(room)
    with pytest.raises(LaneError, match=f"needs {room + 1} KV positions, and {room} were reserved"):
        backend.run_layers(backend.embedding(IDS[None, :1]), 0, 4, positions=torch.tensor([room]), cache=text)
    with pytest.raises(LaneError, match=f"needs {room + 3} KV positions"):
        branches.rows(slice(0, 1), [[room + 2]])
    text.start(room + 1)
    text.set_length(room + 1)


def test_memory_that_is_not_there_is_an_error_with_its_numbers(monkeypatch):
    backend = CudaBackend(decoder_of("grouped queries"), device="cpu")
    text = backend.new_text()

    def none_left(*args, **kwargs):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(captured_calls.torch, "empty", none_left)
    with pytest.raises(
        MemoryFitError, match=r"cpu has no room for keys and values of 1 sequences of 2048 positions \(0\.001 GB\)"
    ):
        text.start(1300)


LONG = torch.randint(3, VOCAB_SIZE, (2 * FIRST_LIMIT,), generator=torch.Generator().manual_seed(3)).tolist()
ASKED = {5: 8, FIRST_LIMIT - 28: 40, 2 * FIRST_LIMIT - 26: 40}
"""New tokens by the length of a prompt: one text that is short, and two that cross a limit of slots."""


def generate(engine, folders):
    """What is written by every schedule of `CHAINS`, by its name and the prompt's length."""
    return {
        (name, length): engine.generate(
            for_folders(SCHEDULES[name], folders), LONG[:length], max_new_tokens=count, eos_token_ids=()
        )
        for name in CHAINS
        for length, count in ASKED.items()
    }


@pytest.fixture(scope="module")
def eager(long_folders):
    with thread_engine(long_folders.target, exits_folder=long_folders.exits) as engine:
        return generate(engine, long_folders)


@pytest.fixture(scope="module")
def captured(long_folders):
    """What lanes with the back end of a GPU write, on the CPU, and the calls that were captured while they did.

    They are told what is to come as lanes that compile are.
    """
    backends, preparing, late = [], threading.local(), []
    prepare, make = CudaBackend.prepare, CapturedCall.__init__

    def opener(device, dtype):
        def opened(decoder):
            backends.append(CudaBackend(decoder, device="cpu"))
            return backends[-1]

        return opened

    def prepared(self, plan):
        preparing.now = True
        prepare(self, plan)
        preparing.now = False

    def made(self, decoder, shape, *rest):
        if not getattr(preparing, "now", False):
            late.append(shape)
        make(self, decoder, shape, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_models, "backend_opener", opener)
        patch.setattr(Device, "prepares", property(lambda self: True))
        patch.setattr(CudaBackend, "prepare", prepared)
        patch.setattr(CapturedCall, "__init__", made)
        with thread_engine(long_folders.target, exits_folder=long_folders.exits) as engine:
            found = generate(engine, long_folders)
    assert len(backends) > 2
    return found, late


def test_every_schedule_does_the_rounds_and_writes_the_text_of_eager_torch(eager, captured):
    found, _ = captured
    for asked, expected in eager.items():
        assert found[asked].tokens == expected.tokens, asked
        rounds = [[one.num_accepted for one in result.trace.rounds] for result in (found[asked], expected)]
        assert rounds[0] == rounds[1], asked
    said = {token for result in eager.values() for token in result.tokens}
    assert len(said) > 5


def test_a_sequence_captures_nothing_after_it_was_prepared(captured):
    assert captured[1] == []
