"""A compiled decoder says the same to the last bit to who has torch and to who has not: records hold for lanes."""

import numpy as np
import pytest
import torch

from runtime.arrays import as_array, as_tensor
from runtime.backends.backend import segments_between
from runtime.backends.lane_device import Device
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.torch_backend import OpenVinoBackend
from runtime.models.vocabulary import OutputRows
from runtime.storage.stored_decoder import stored_form
from runtime.wire.channel import to_block
from tests.tiny_models import tiny_adapters, tiny_target

FORMS = ["float32", "bfloat16", "int8"]
IDS = np.random.default_rng(0).integers(61, size=24)


def pair_of(form):
    """The same weights for torch and without it, and the decoder of torch."""
    dtype = torch.float32 if form == "float32" else torch.bfloat16
    ours, theirs = (tiny_target(max_position=400).to(dtype) for _ in range(2))
    compiled = CompiledDecoder(stored_form(ours), device=Device.of_lane("openvino:CPU"), form=form, num_threads=1)
    return compiled, OpenVinoBackend(theirs, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1), theirs


def read(backend, ids, *, cuts=()):
    """States after every cut and the last layer, of a text read in two calls."""
    text, found = backend.new_text(), []
    text.start(len(ids))
    for start, stop in ((0, 19), (19, len(ids))):
        x, positions = backend.embedding(ids[None, start:stop]), np.arange(start, stop)
        states = []
        for first, last in segments_between(*cuts, backend.config.num_layers):
            x = backend.run_layers(x, first, last, positions=positions, cache=text)
            states.append(x[0])
        text.advance(stop - start)
        found.append(states)
    return [states[-5:] for states in found[-1]], x


@pytest.mark.parametrize("form", FORMS)
def test_states_logits_and_features_are_the_same(form):
    compiled, for_torch, _ = pair_of(form)
    ours, x = read(compiled, IDS, cuts=(1, 2))
    theirs, y = read(for_torch, IDS, cuts=(1, 2))
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one, as_array(other.float()))
    assert np.array_equal(compiled.logits(x), as_array(for_torch.logits(y)))
    assert np.array_equal(compiled.normalise(x), as_array(for_torch.normalise(y).float()))
    for is_raw in (False, True):
        sent = compiled.features(np.stack(ours[:2], 1), is_raw=is_raw)
        recorded = for_torch.features(torch.stack(theirs[:2], 1), is_raw=is_raw)
        assert np.array_equal(sent, as_array(recorded))
        assert to_block(sent) == to_block(recorded)
        assert np.array_equal(compiled.array(to_block(sent)), as_array(for_torch.array(to_block(sent)).float()))


@pytest.mark.parametrize("form", FORMS)
def test_what_a_draft_or_an_exit_adds_is_the_same(form):
    compiled, for_torch, decoder = pair_of(form)
    dtype = decoder.lm_head.weight.dtype
    x = as_array(torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1)).to(dtype)).astype(np.float32)
    y = as_tensor(x).to(dtype)
    matrix = torch.randn(7, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    assert np.array_equal(compiled.product(as_array(matrix))(x), as_array(for_torch.product(matrix)(y)))
    adapter = tiny_adapters(decoder, (2,))[2].to(dtype)
    arrays = {name: as_array(weight) for name, weight in adapter.named_parameters()}
    assert np.array_equal(compiled.adapter(arrays)(x), as_array(for_torch.adapter(adapter)(y)))

    head = decoder.lm_head.weight.detach()
    kept = torch.arange(0, 61, 3)
    theirs = OutputRows(kept, head[kept], head)
    ours = OutputRows(as_array(kept), as_array(head[kept]), as_array(head))
    for output, backend in ((theirs, for_torch), (ours, compiled)):
        output.run_on(backend)
        output.add_prompt_tokens([1, 3, 7, 8])
    assert ours.ids.tolist() == theirs.ids.tolist() == [*kept.tolist(), 1, 7, 8]
    assert np.array_equal(ours.logits(x), as_array(theirs.logits(y).float()))


@pytest.mark.parametrize("form", FORMS)
def test_an_adapter_computes_what_torch_does(form):
    compiled, _, decoder = pair_of(form)
    adapter = tiny_adapters(decoder, (2,))[2].float()
    arrays = {name: as_array(weight) for name, weight in adapter.named_parameters()}
    x = np.random.default_rng(0).standard_normal((1, 4, 16), np.float32)
    with torch.inference_mode():
        expected = adapter(torch.from_numpy(x))
    error = np.abs(compiled.adapter(arrays)(x) - expected.numpy()).max()
    assert error < (1e-4 if form == "float32" else 0.05) * float(expected.abs().max())


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_a_prompts_head_depends_on_no_other(form):
    compiled, _, _ = pair_of(form)
    rows = np.random.default_rng(0).standard_normal((11, 16), np.float32)
    x = np.random.default_rng(1).standard_normal((1, 9, 16), np.float32)
    head = compiled.prompt_head(rows)
    for start in range(9):
        assert np.array_equal(head(x[:, start : start + 3]), head(x)[:, start : start + 3])
    np.testing.assert_allclose(head(x)[0], x[0] @ rows.T, rtol=1e-4, atol=1e-4)
