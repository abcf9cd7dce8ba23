import json

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from decoding.errors import ModelError, ModelFormatError
from runtime.arrays import BFLOAT16, FLOAT32, as_array
from runtime.models.config import decoder_shapes
from runtime.models.decoder import Decoder, load_decoder
from runtime.storage.quantization import dequantize_rows, pack, quantize_rows, unpack
from runtime.storage.safetensors_files import arrays_of, read_arrays
from runtime.storage.stored_decoder import load_stored_decoder, stored_form
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import OPT, tiny_config, tiny_target


def test_the_error_of_an_element_is_at_most_half_the_scale_of_its_row():
    matrix = np.random.default_rng(0).standard_normal((9, 33), np.float32)
    matrix[4] *= 1000.0
    values, scales = quantize_rows(matrix)
    back = dequantize_rows(values, scales, FLOAT32)
    for row in range(9):
        largest = max(abs(float(x)) for x in matrix[row])
        assert scales[row] == pytest.approx(largest / 127)
        for x, y in zip(matrix[row].tolist(), back[row].tolist(), strict=True):
            assert abs(x - y) <= largest / 127 / 2 * (1 + 1e-5)


def test_the_largest_element_of_a_row_and_a_row_of_zeros_come_back_unchanged():
    matrix = np.array([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    back = dequantize_rows(*quantize_rows(matrix), FLOAT32)
    assert back[0, 1].item() == pytest.approx(-2.0)
    assert back[1].tolist() == [0.0, 0.0, 0.0]


def test_matrices_are_stored_in_a_byte_per_element_and_vectors_in_bfloat16():
    packed = pack({"w": np.ones((3, 4)), "norm": np.ones(4), "map": np.eye(4)}, unquantized={"map"})
    assert {name: tensor.dtype for name, tensor in packed.items()} == {
        "w": np.int8,
        "w.scale": FLOAT32,
        "norm": BFLOAT16,
        "map": BFLOAT16,
    }


SHAPES = {"w": (3, 4), "norm": (4,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None}, "stored.safetensors: the tensor 'w' is missing"),
        ({"w.scale": None}, "the tensor 'w.scale' is missing"),
        ({"extra": np.ones(1)}, "unknown tensor 'extra'; expected only w, norm"),
        ({"norm": np.ones(5)}, r"norm has shape \(5,\), expected \(4,\)"),
        ({"norm": np.ones(4, np.int64)}, "norm is stored as int64"),
        ({"norm": np.array([1.0, float("nan"), 1.0, 1.0])}, "norm holds numbers that are not finite"),
        ({"w.scale": np.array([1.0, float("inf"), 1.0])}, "w holds numbers that are not finite"),
        ({"w.scale": np.array([1.0, 1.0, 3e38])}, "w holds numbers that are not finite"),
        ({"w.scale": np.ones(2)}, "w.scale is not one floating-point scale for each of 3 rows"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_file_and_tensor(change, message):
    stored = pack({"w": np.full((3, 4), 127.0), "norm": np.ones(4)}) | change
    stored = {name: tensor for name, tensor in stored.items() if tensor is not None}
    with pytest.raises(ModelFormatError, match=message):
        unpack(stored, SHAPES, FLOAT32, source="stored.safetensors")


def test_an_array_without_data_and_with_impossible_columns_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(SafetensorError, match=r"an array of shape \[0, 9223372036854775808\]"):
        arrays_of(path)
    with pytest.raises(ModelError, match=r"model\.safetensors: damaged or truncated"):
        read_arrays(tmp_path)


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
