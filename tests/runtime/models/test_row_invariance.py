"""A row has the same bits in any company: linear layers and whole decoders over a cache, on one and two threads."""

from contextlib import contextmanager
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.backends.eager import EagerBackend
from runtime.backends.self_test import is_row_invariant
from runtime.models import row_invariance
from runtime.models.decoder import load_decoder
from runtime.models.default_model import embedded_folder, is_present
from runtime.models.row_invariance import linear
from tests.runtime.reading import first_layers, read
from tests.tiny_models import OPT, tiny_target

LENGTH, PROMPT = 80, 50
DTYPES = [torch.float32, torch.bfloat16]


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cancelling(count, size, dtype):
    """Rows whose halves take each other away under `mirrored` weights: what is left tells the order of the sum."""
    half = torch.randn(count, size // 2).to(dtype)
    return torch.cat([half, -half], dim=1)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    shape=st.sampled_from([(16, 24), (1536, 64), (576, 96), (64, 32)]),
    first=st.integers(0, 40),
    count=st.integers(1, 24),
    with_bias=st.booleans(),
)
@settings(deadline=None, max_examples=12)
def test_rows_of_a_linear_layer_are_alike_alone_and_among_others(num_threads, dtype, shape, first, count, with_bias):
    inputs, outputs = shape
    torch.manual_seed(first)
    rows = cancelling(64, inputs, dtype)
    weight = torch.randn(outputs, inputs // 2).repeat(1, 2).to(dtype)
    bias = torch.zeros(outputs, dtype=dtype) if with_bias else None
    with threads(num_threads), torch.inference_mode():
        some = linear(rows[None, first : first + count], weight, bias)
        assert some.shape == (1, count, outputs)
        assert torch.equal(some[0], linear(rows, weight, bias)[first : first + count])


def test_a_linear_layer_that_learns_is_taken_as_it_is():
    rows, weight = torch.randn(1, 16, requires_grad=True), torch.randn(24, 16)
    linear(rows, weight).sum().backward()
    torch.testing.assert_close(rows.grad[0], weight.sum(dim=0))


@st.composite
def chunkings(draw):
    """Sizes of the pieces that a text of `LENGTH` tokens is read in, the first of them its prompt."""
    sizes = [PROMPT]
    while sum(sizes) < LENGTH:
        sizes.append(draw(st.integers(1, LENGTH - sum(sizes))))
    return tuple(sizes)


IDS = torch.randint(61, (LENGTH,), generator=torch.Generator().manual_seed(4))


def read_by(decoder, sizes):
    """Logits of the text read in these pieces, [T, V]."""
    return read(EagerBackend(decoder), sizes, ids=IDS)


@cache
def decoder_of(num_heads, num_kv_heads, dtype):
    """One without key/value heads is an OPT."""
    if num_kv_heads == 0:
        return tiny_target(**OPT | {"num_heads": num_heads, "num_kv_heads": num_heads}).to(dtype)
    return tiny_target(num_heads=num_heads, num_kv_heads=num_kv_heads).to(dtype)


@cache
def decoded_plainly(num_threads, num_heads, num_kv_heads, dtype):
    return read_by(decoder_of(num_heads, num_kv_heads, dtype), [PROMPT] + [1] * (LENGTH - PROMPT))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@given(sizes=chunkings(), heads=st.sampled_from([(4, 2), (6, 2), (3, 3)]))
@settings(deadline=None, max_examples=8)
def test_a_text_read_in_pieces_has_the_logits_of_plain_decoding(num_threads, dtype, heads, sizes):
    """With one to three queries a key, and texts on both sides of slot 64."""
    with threads(num_threads):
        assert torch.equal(read_by(decoder_of(*heads, dtype), sizes), decoded_plainly(num_threads, *heads, dtype))


@pytest.mark.parametrize("num_threads", [1, 2])
@given(sizes=chunkings())
@settings(deadline=None, max_examples=8)
def test_so_has_one_read_by_an_opt(num_threads, sizes):
    """In bfloat16: in float32 it holds in a process of its own, and not always after many other tests."""
    with threads(num_threads):
        plainly = decoded_plainly(num_threads, 4, 0, torch.bfloat16)
        assert torch.equal(read_by(decoder_of(4, 0, torch.bfloat16), sizes), plainly)


def test_what_is_found_within_a_training_step_holds_after_it():
    weight, found = torch.randn(16, 32), []
    for autocasts in (True, False):
        row_invariance._fitting_multiple.cache_clear()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts):
            found.append(row_invariance._multiple(weight, None))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "dtype"), [({}, torch.float32), ({}, torch.bfloat16), (OPT, torch.bfloat16)], ids=str
)
def test_the_test_at_start_up_tells_it(changes, dtype):
    assert is_row_invariant(EagerBackend(tiny_target(**changes).to(dtype)))


@pytest.mark.skipif(not is_present(), reason="the embedded model has not been fetched")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_embedded_model_is_row_invariant(dtype):
    assert is_row_invariant(EagerBackend(first_layers(load_decoder(embedded_folder(), dtype=dtype))))


def test_the_test_at_start_up_tells_a_model_whose_rows_depend_on_their_number():
    decoder = tiny_target()
    normalise = decoder.normalise
    decoder.normalise = lambda x: normalise(x) * (1 + 1e-6 * x.shape[1])
    assert not is_row_invariant(EagerBackend(decoder))
