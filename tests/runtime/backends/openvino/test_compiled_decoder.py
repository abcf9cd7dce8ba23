"""Compiled segments compute what the decoder computes, and a row has the same bits in any company."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import ModelError
from runtime.arrays import as_array
from runtime.backends.eager import EagerBackend
from runtime.backends.self_test import is_row_invariant
from runtime.models.decoder import load_decoder
from runtime.models.default_model import embedded_folder, is_present
from tests.runtime import reading
from tests.runtime.reading import IDS, compiled, first_layers, prepare, read, rounded
from tests.tiny_models import tiny_adapters, tiny_target

FORMS = ["float32", "bfloat16", "int8", "int4"]
SHAPES = reading.SHAPES | {
    "rows that int8 rounds in groups": {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
}
SIZES = (1, 4, 8)

EMBEDDED = embedded_folder()
"""Before the cache of these tests is another."""


def decoder_of(shape):
    return tiny_target(**SHAPES[shape], max_position=400)


@cache
def backend_of(shape, form):
    return prepare(compiled(decoder_of(shape), form))


@cache
def one_by_one(shape, form):
    return read(backend_of(shape, form), [1] * len(IDS))


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_logits_are_the_decoders(shape):
    expected = read(EagerBackend(decoder_of(shape)), [len(IDS)])
    found = one_by_one(shape, "float32")
    assert torch.allclose(found, expected, atol=2e-3, rtol=1e-3)
    assert not torch.allclose(found[:-1], expected[1:], atol=0.5)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_logits_are_those_of_the_rounded_weights(form):
    """The embedding, which is looked up, stays as it is, and the head is int8 where layers are int4."""
    own, other, whole = (tiny_target(max_position=400, tie_embeddings=False) for _ in range(3))
    found = read(compiled(own, form), [16] * 8)
    near, far = (
        read(EagerBackend(one), [len(IDS)]) for one in (rounded(other, form), whole.to(torch.bfloat16).float())
    )
    error = (found - near).abs().mean()
    assert error < 0.5 * (far - near).abs().mean() + 0.05 * near.abs().mean()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@given(chunks=st.lists(st.sampled_from([*SIZES, 3, 30]), min_size=1, max_size=12), cut=st.booleans())
@settings(deadline=None, max_examples=4)
def test_a_row_has_the_same_bits_in_any_chunk_and_with_any_cut(shape, form, chunks, cut):
    backend = backend_of(shape, form)
    found = read(backend, [*chunks, len(IDS)], cuts=(1,) * cut)
    assert torch.equal(found, one_by_one(shape, form))


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_grows_keeps_what_it_has_and_bits_do_not_depend_on_empty_slots(form):
    """From 127 slots on it moves into larger buffers; a text that begins in a large one says the same."""
    backend, ids = backend_of("grouped queries", form), IDS.repeat(3)[:300]
    grown = read(backend, [8] * 40, ids=ids)
    assert torch.equal(grown[: len(IDS)], one_by_one("grouped queries", form))
    text = backend.new_text()
    text.memory.restart(300)
    x = backend.embedding(np.asarray(ids[None, :8]))
    x = backend.run_layers(x, 0, backend.config.num_layers, positions=np.arange(8), cache=text)
    assert np.array_equal(backend.logits(x)[0], grown[:8])


PLANNED = {"those of a sequence": (7, None), "any up to those of a sequence": (7, 2), "none": (0, None)}
"""Branches of a call, at most and at least."""


@pytest.mark.parametrize("planned", PLANNED)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_a_branch_has_the_same_bits_next_to_any_number_of_others(form, planned):
    most, least = PLANNED[planned]
    backend = prepare(compiled(decoder_of("grouped queries"), form), num_branches=most, least_branches=least)

    def first_of(count):
        """States and logits of the first row of so many of seven branches, in one call."""
        text, branches = backend.new_text(), backend.new_branches(7)
        text.start(100)
        branches.start(100)
        x = backend.embedding(np.asarray(IDS[None, :22]))
        backend.run_layers(x, 0, 4, positions=np.arange(22), cache=text)
        text.advance(22)
        branches.follow(text, num_final=22, stop=22)
        rows = branches.rows(slice(0, count), [[22]] * count)
        ids = np.arange(3, 3 + count)[:, None]
        found = backend.run_layers(backend.embedding(ids), 0, 4, positions=rows.positions_RT, cache=rows)
        return found, backend.logits(found)

    together = first_of(7)
    for count in range(1, 7):
        for some, every in zip(first_of(count), together, strict=True):
            assert np.array_equal(some, every[:count])


def test_branches_made_before_the_first_sequence_have_rows_to_fill_calls_up():
    """As a draft makes them, on a CPU where calls have at least four rows."""
    backend, expected = (compiled(decoder_of("grouped queries"), "float32") for _ in range(2))
    found = []
    for own, floor in ((backend, 4), (expected, 1)):
        own.__dict__["_probed_floor"] = floor
        branches = own.new_branches(3)
        prepare(own, num_branches=3)
        branches.start(60)
        rows = branches.rows(slice(3), [[0]] * 3)
        x = own.embedding(np.array([[1], [2], [3]]))
        found.append(own.run_layers(x, 0, own.config.num_layers, positions=rows.positions_RT, cache=rows))
    assert np.allclose(*found, atol=1e-4)


def test_rows_that_fill_a_call_up_are_numbers_where_norms_add_nothing():
    backend = prepare(compiled(tiny_target(norm_eps=0.0), "float32"), rows=(4,))
    assert np.isfinite(as_array(read(backend, [1, 3, 1]))).all()


def test_an_architecture_without_a_graph_is_refused():
    decoder = tiny_target(architecture="OPTForCausalLM")
    with pytest.raises(ModelError, match="OPTForCausalLM has no OpenVINO graph.* lanes of torch run it, such as cpu0"):
        compiled(decoder, "float32")


@pytest.mark.skipif(not is_present(), reason="the embedded model is not in the cache")
@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4"])
def test_the_embedded_model_is_row_invariant(form):
    assert is_row_invariant(compiled(first_layers(load_decoder(EMBEDDED, dtype=torch.bfloat16)), form))


@pytest.mark.parametrize("form", FORMS[:3])
def test_an_adapter_computes_what_torch_does(form):
    decoder = tiny_target(max_position=400)
    adapter = tiny_adapters(decoder, (2,))[2].float()
    arrays = {name: as_array(weight) for name, weight in adapter.named_parameters()}
    x = np.random.default_rng(0).standard_normal((1, 4, 16), np.float32)
    with torch.inference_mode():
        expected = adapter(torch.from_numpy(x))
    error = np.abs(compiled(decoder, form).adapter(arrays)(x) - expected.numpy()).max()
    assert error < (1e-4 if form == "float32" else 0.05) * float(expected.abs().max())


def test_a_row_of_a_prompts_head_depends_on_no_other():
    rows = np.random.default_rng(0).standard_normal((11, 16), np.float32)
    x = np.random.default_rng(1).standard_normal((1, 9, 16), np.float32)
    head = compiled(tiny_target(), "float32").prompt_head(rows)
    for start in range(9):
        assert np.array_equal(head(x[:, start : start + 3]), head(x)[:, start : start + 3])
    np.testing.assert_allclose(head(x)[0], x[0] @ rows.T, rtol=1e-4, atol=1e-4)
