"""Compiled segments compute what the decoder computes, and a row has the same bits in any company."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import ModelError
from runtime.arrays import as_array, as_tensor
from runtime.backends.backend import Plan, segments_between
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device
from runtime.backends.openvino.torch_backend import OpenVinoBackend
from runtime.backends.openvino.weights.packing import quantized, quantized_int4
from runtime.backends.self_test import is_row_invariant
from runtime.models.embedded import embedded_folder, is_present
from runtime.models.weights import load_decoder
from tests.tiny_models import VOCAB_SIZE, tiny_target

FORMS = ["float32", "bfloat16", "int8", "int4"]
SHAPES = {
    "grouped queries": {},
    "a key for every query": {"num_kv_heads": 4},
    "one key for all": {"num_kv_heads": 1, "num_layers": 2},
    "rows that int8 rounds in groups": {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16},
    "biases": {"architecture": "Qwen2ForCausalLM", "attention_bias": True, "mlp_bias": True},
    "norms of queries and keys": {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "tie_embeddings": False},
}
SIZES = (1, 4, 8)
IDS = torch.randint(VOCAB_SIZE, (127,), generator=torch.Generator().manual_seed(1))

EMBEDDED = embedded_folder()
"""Before the cache of these tests is another."""


@cache
def decoder_of(shape):
    return tiny_target(**SHAPES[shape], max_position=400)


def new_backend():
    return OpenVinoBackend(
        tiny_target(max_position=400), device=Device.of_lane("openvino:CPU"), form="bfloat16", num_threads=1
    )


@cache
def backend_of(shape, form):
    decoder = decoder_of(shape)
    if form != "float32":
        decoder = tiny_target(**SHAPES[shape], max_position=400).to(torch.bfloat16)
    backend = OpenVinoBackend(decoder, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1)
    whole = segments_between(decoder.config.num_layers)
    backend.prepare(Plan(num_slots=127, num_prompt=60, rows=SIZES, segments=whole, prompt_segments=whole))
    return backend


def read(backend, chunks, *, ids=IDS, cuts=()):
    """Logits of a text read in these chunks, the last one for as long as it goes."""
    text, found = backend.new_text(), []
    text.start(len(ids))
    for count in chunks:
        if text.cursor == len(ids):
            break
        stop = min(text.cursor + count, len(ids))
        x = backend.embedding(ids[None, text.cursor : stop])
        positions = torch.arange(text.cursor, stop)
        for start, end in segments_between(*cuts, backend.config.num_layers):
            x = backend.run_layers(x, start, end, positions=positions, cache=text)
        found.append(backend.logits(x)[0])
        text.set_length(stop)
    return torch.cat(found).float()


@cache
def one_by_one(shape, form):
    return read(backend_of(shape, form), [1] * len(IDS))


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_logits_are_the_decoders(shape) -> None:
    with torch.inference_mode():
        expected = read(EagerBackend(decoder_of(shape)), [len(IDS)])
    found = one_by_one(shape, "float32")
    assert torch.allclose(found, expected, atol=2e-3, rtol=1e-3)
    assert not torch.allclose(found[:-1], expected[1:], atol=0.5)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_logits_are_those_of_the_rounded_weights(form) -> None:
    """The embedding, which is looked up, stays as it is, and the head is int8 where layers are int4."""
    decoder, rounded = (tiny_target(max_position=400, tie_embeddings=False).to(torch.bfloat16) for _ in range(2))
    rounded, whole = rounded.float(), deepcopy(decoder).float()
    for name, weight in rounded.named_parameters():
        if weight.dim() == 2 and "embedding" not in name:
            rounding = quantized_int4 if form == "int4" and "lm_head" not in name else quantized
            values, scale = (as_tensor(part).float() for part in rounding(as_array(weight)))
            weight.copy_((values * scale).view(weight.shape))
    found = read(OpenVinoBackend(decoder, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1), [16] * 8)
    with torch.inference_mode():
        near, far = (read(EagerBackend(one), [len(IDS)]) for one in (rounded, whole))
    error = (found - near).abs().mean()
    assert error < 0.5 * (far - near).abs().mean() + 0.05 * near.abs().mean()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@given(chunks=st.lists(st.sampled_from([*SIZES, 3, 30]), min_size=1, max_size=12), cut=st.booleans())
@settings(deadline=None, max_examples=4)
def test_a_row_has_the_same_bits_in_any_chunk_and_with_any_cut(shape, form, chunks, cut) -> None:
    backend = backend_of(shape, form)
    found = read(backend, [*chunks, len(IDS)], cuts=(1,) * cut)
    assert torch.equal(found, one_by_one(shape, form))


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_grows_keeps_what_it_has_and_bits_do_not_depend_on_empty_slots(form) -> None:
    """From 127 slots on it moves into larger buffers; a text that begins in a large one says the same."""
    backend, ids = backend_of("grouped queries", form), IDS.repeat(3)[:300]
    grown = read(backend, [8] * 40, ids=ids)
    assert torch.equal(grown[: len(IDS)], one_by_one("grouped queries", form))
    text = backend.new_text()
    text.memory.restart(300)
    positions = torch.arange(8)
    x = backend.embedding(ids[None, :8])
    x = backend.run_layers(x, 0, backend.config.num_layers, positions=positions, cache=text)
    assert torch.equal(backend.logits(x)[0].float(), grown[:8])


@pytest.mark.parametrize("form", FORMS)
def test_the_self_test_says_so(form) -> None:
    assert is_row_invariant(backend_of("grouped queries", form))


PLANNED = {"those of a sequence": (7, None), "any up to those of a sequence": (7, 2), "none": (0, None)}
"""Branches of a call, at most and at least."""


@pytest.mark.parametrize("planned", PLANNED)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_a_branch_has_the_same_bits_next_to_any_number_of_others(form, planned) -> None:
    decoder = decoder_of("grouped queries")
    if form != "float32":
        decoder = tiny_target(max_position=400).to(torch.bfloat16)
    backend = OpenVinoBackend(decoder, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1)
    whole, (most, least) = segments_between(4), PLANNED[planned]
    backend.prepare(
        Plan(
            num_slots=127,
            num_prompt=60,
            rows=SIZES,
            segments=whole,
            prompt_segments=whole,
            num_branches=most,
            least_branches=least,
        )
    )

    def first_of(count):
        """States and logits of the first row of so many of seven branches, in one call."""
        text, branches = backend.new_text(), backend.new_branches(7)
        text.start(100)
        branches.start(100)
        x = backend.embedding(IDS[None, :22])
        backend.run_layers(x, 0, 4, positions=torch.arange(22), cache=text)
        text.advance(22)
        branches.follow(text, num_final=22, stop=22)
        rows = branches.rows(slice(0, count), [[22]] * count)
        ids = torch.arange(3, 3 + count)[:, None]
        found = backend.run_layers(backend.embedding(ids), 0, 4, positions=rows.positions_RT, cache=rows)
        return found, backend.logits(found)

    together = first_of(7)
    for count in range(1, 7):
        for some, every in zip(first_of(count), together, strict=True):
            assert torch.equal(some, every[:count])


def test_an_architecture_without_a_graph_is_refused() -> None:
    decoder = tiny_target(architecture="OPTForCausalLM")
    with pytest.raises(ModelError, match="OPTForCausalLM has no OpenVINO graph"):
        OpenVinoBackend(decoder, device=Device.of_lane("openvino:CPU"), form="float32", num_threads=1)


@pytest.mark.skipif(not is_present(), reason="the embedded model is not in the cache")
@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4"])
def test_the_embedded_model_is_row_invariant(form) -> None:
    decoder = load_decoder(EMBEDDED, dtype=torch.bfloat16)
    assert is_row_invariant(OpenVinoBackend(decoder, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1))
