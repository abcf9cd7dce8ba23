"""A decoder as arrays is the decoder of torch, number by number."""

import numpy as np
import pytest
import torch

from decoding.errors import ModelError
from runtime.arrays import BFLOAT16, FLOAT32, as_array
from runtime.models.decoder import Decoder, load_decoder
from runtime.storage.decoder_names import decoder_shapes
from runtime.storage.stored_decoder import load_stored_decoder, stored_form
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import OPT, tiny_config, tiny_target

FAMILIES = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "biases": {"architecture": "Qwen2ForCausalLM", "attention_bias": True},
    "norms": {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "num_kv_heads": 4},
    "opt": OPT,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_shapes_are_those_of_the_parameters(name):
    config = tiny_config(**FAMILIES[name])
    expected = {name: tuple(weight.shape) for name, weight in Decoder(config).named_parameters()}
    assert decoder_shapes(config) == expected


@pytest.mark.parametrize("name", ["tied", "untied", "biases", "norms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_numbers_are_read(tmp_path, name, dtype):
    folder = save_target(tiny_target(**FAMILIES[name]), tmp_path / "target")
    whole = load_decoder(folder, dtype=dtype)
    stored = load_stored_decoder(folder, BFLOAT16 if dtype == torch.bfloat16 else FLOAT32)
    for one in (stored, stored_form(whole)):
        assert np.array_equal(one.embedding.weight, as_array(whole.embedding.weight))
        assert np.array_equal(one.lm_head.weight, as_array(whole.lm_head.weight))
        assert np.array_equal(one.final_norm, as_array(whole.final_norm.float()))
        assert np.array_equal(one.rotary[0], as_array(whole.rotary.cos_PH))
        assert np.array_equal(one.rotary[1], as_array(whole.rotary.sin_PH))
        for ours, theirs in zip(one.layers, whole.layers, strict=True):
            parameters = {name: as_array(weight) for name, weight in theirs.named_parameters()}
            assert ours.keys() == parameters.keys()
            assert all(np.array_equal(ours[name], weight) for name, weight in parameters.items())


def test_states_and_norms_are_the_decoders():
    decoder = tiny_target()
    stored, ids = stored_form(decoder), np.array([[3, 1, 4]])
    x_BTD = stored.embedded(ids)
    assert np.array_equal(x_BTD, as_array(decoder.embedding(torch.from_numpy(ids))))
    expected = decoder.normalise(torch.from_numpy(x_BTD))
    torch.testing.assert_close(torch.from_numpy(stored.normalise(x_BTD)), expected)


def test_a_shell_has_no_layers_and_a_missing_tensor_is_named(tmp_path):
    folder = save_target(tiny_target(), tmp_path / "target")
    shell = load_stored_decoder(folder, FLOAT32, with_layers=False)
    assert shell.layers == []
    assert shell.config.num_layers == 4
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_hidden_layers": 4', '"num_hidden_layers": 5'))
    with pytest.raises(ModelError, match=r"model\.layers\.4.* is missing"):
        load_stored_decoder(folder, FLOAT32)
