"""Weights come from one file or from shards, and a damaged file is named."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.errors import ModelError, ModelFormatError
from runtime.arrays import BFLOAT16, FLOAT32, as_array
from runtime.models.config import decoder_shapes
from runtime.models.decoder import Decoder, load_decoder
from runtime.storage.safetensors_files import dequantize_rows, pack, quantize_rows, read_arrays, unpack
from runtime.storage.stored_decoder import load_stored_decoder, rotary_tables
from tests.runtime.reading import stored_form
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import OPT, tiny_config, tiny_target


@pytest.fixture
def folder(tmp_path):
    return save_target(tiny_target(), tmp_path / "target")


def shard(folder):
    """Spread the tensors over two files, as large models are."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: f"model-{place % 2 + 1}.safetensors" for place, name in enumerate(sorted(tensors))}
    for file in set(names.values()):
        save_file({name: tensors[name].contiguous() for name in tensors if names[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def test_an_output_head_of_its_own_is_read(folder):
    """Where a config ties it to the embedding, it has to be a copy: which one is meant would be a guess."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.clone()}, folder / "model.safetensors")
    load_decoder(folder, dtype=torch.float32)
    lm_head = torch.randn_like(embedding)
    save_file(tensors | {"lm_head.weight": lm_head}, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"ties lm_head to the embedding .*set tie_word_embeddings to false"):
        load_decoder(folder, dtype=torch.float32)
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    decoder = load_decoder(folder, dtype=torch.float32)
    assert torch.equal(decoder.lm_head.weight, lm_head)
    assert not torch.equal(decoder.embedding.weight, lm_head)


def test_shards_are_one_model(folder):
    whole = load_decoder(folder, dtype=torch.float32)
    shard(folder)
    parts = load_decoder(folder, dtype=torch.float32)
    assert all(torch.equal(tensor, parts.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_a_whole_file_goes_before_the_index_of_shards_that_were_there(folder):
    """As in transformers, which saves over shards and leaves their index."""
    whole = load_file(folder / "model.safetensors")
    shard(folder)
    save_file({name: tensor.contiguous() for name, tensor in whole.items()}, folder / "model.safetensors")
    older = load_file(folder / "model-1.safetensors")
    save_file({name: 2 * tensor for name, tensor in older.items()}, folder / "model-1.safetensors")
    (folder / "model-2.safetensors").unlink()
    found = read_arrays(folder)
    assert all(np.array_equal(found[name], as_array(tensor)) for name, tensor in whole.items())


def save_at(tensors, path, offset):
    """Write tensors so that the first of them starts so many bytes after a multiple of 64."""
    for padding in range(0, 128, 8):
        save_file(tensors, path, metadata={"padding": "x" * padding})
        if (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 64 == offset:
            return
    raise AssertionError(offset)


def on_disk(matrices, folder):
    """The matrices, by name, whose memory is that of the mapped file."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("which memory is of a file is asked of Linux")
    lines = [line for line in maps.read_text().splitlines() if line.endswith(str(folder / "model.safetensors"))]
    ranges = [range(*(int(end, 16) for end in line.split()[0].split("-"))) for line in lines]
    return [name for name, matrix in matrices.items() if any(matrix.data_ptr() in one for one in ranges)]


@pytest.mark.parametrize("offset", [0, 8])
def test_matrices_stay_on_disk_where_they_are_aligned(folder, offset):
    whole = load_decoder(folder, dtype=torch.float32)
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_at(tensors, folder / "model.safetensors", offset)
    mapped = load_decoder(folder, dtype=torch.float32)
    state = mapped.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in tensors.items() if name in state)
    assert torch.equal(
        mapped.layers[2].gate_up.weight,
        torch.cat([tensors[f"model.layers.2.mlp.{part}_proj.weight"] for part in ("gate", "up")]),
    )
    assert torch.equal(
        mapped.layers[2].qkv.weight,
        torch.cat([tensors[f"model.layers.2.self_attn.{part}_proj.weight"] for part in "qkv"]),
    )
    matrices = {name: tensor for name, tensor in mapped.named_parameters() if tensor.dim() == 2}
    assert all(tensor.data_ptr() % 64 == 0 for tensor in matrices.values())
    shared = {name.split(".")[-2] for name in on_disk(matrices, folder)}
    assert shared == ({"embedding", "out", "gate_up", "down"} if offset == 0 else set())
    converted = load_decoder(folder, dtype=torch.bfloat16)
    assert not on_disk(dict(converted.named_parameters()), folder)
    assert whole.config == mapped.config


@pytest.mark.parametrize("file", ["model.safetensors.index.json", "model-2.safetensors"])
def test_a_truncated_or_missing_file_is_named(folder, file):
    shard(folder)
    (folder / file).write_bytes((folder / file).read_bytes()[:-30])
    with pytest.raises(ModelError, match=f"{file}: (truncated, damaged|damaged or truncated)"):
        load_decoder(folder, dtype=torch.float32)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-1\.safetensors|index\.json: damaged"):
        load_decoder(folder, dtype=torch.float32)


@pytest.mark.parametrize(
    ("name", "number", "dtype"),
    [
        ("model.embed_tokens.weight", float("nan"), torch.float32),
        ("model.layers.3.mlp.up_proj.weight", float("inf"), torch.float32),
        ("model.norm.weight", float("-inf"), torch.bfloat16),
        ("model.layers.3.mlp.up_proj.weight", float("nan"), torch.bfloat16),
    ],
)
def test_weights_that_are_not_finite_are_refused(folder, name, number, dtype):
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[-1] = number
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{name}.* holds numbers that are not finite"):
        load_decoder(folder, dtype=dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor[:, :5], r"q_proj.weight \+ .* has shape \[16, 5\]; .* ask for \[32, 16\]"),
        (lambda tensor: tensor.flatten(), r"q_proj.weight \+ .* has shape \[256\]"),
        (lambda tensor: tensor[:8], r"q_proj.weight \+ .* has shape \[24, 16\]"),
        (lambda tensor: tensor.sum(), r"q_proj.weight \+ .* has shape \[\]"),
        (lambda tensor: tensor.int(), "q_proj.weight .* is stored as int32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change, message):
    tensors = load_file(folder / "model.safetensors")
    for part in "qkv":
        name = f"model.layers.1.self_attn.{part}_proj.weight"
        if part == "q" or "stored" in message:
            tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        load_decoder(folder, dtype=torch.float32)


@pytest.mark.parametrize("ending", ["_scale", "_scale_inv"])
def test_weights_beside_scales_are_refused(folder, ending):
    """As numbers of 8 bits they would be read without an error, and wrong."""
    tensors, name = load_file(folder / "model.safetensors"), "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    load_decoder(folder, dtype=torch.float32)
    save_file(tensors | {name + ending: torch.tensor(1.3e-4)}, folder / "model.safetensors")
    for load in (load_decoder, load_stored_decoder):
        with pytest.raises(ModelError, match=rf"{name}{ending} is of quantized weights, which are not read; name the"):
            load(folder, dtype=torch.float32 if load is load_decoder else FLOAT32)


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/etc/hostname", 3])
def test_a_shard_outside_of_the_folder_is_refused(folder, shard):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json: damaged or truncated"):
        load_decoder(folder, dtype=torch.float32)


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
        ({"norm": np.ones(5)}, r"norm has shape \[5\]; .* ask for \[4\]"),
        ({"norm": np.ones(4, np.int64)}, "norm is stored as int64"),
        ({"norm": np.array([1.0, float("nan"), 1.0, 1.0])}, "norm holds numbers that are not finite"),
        ({"w.scale": np.array([1.0, float("inf"), 1.0])}, "w holds numbers that are not finite"),
        ({"w.scale": np.array([1.0, 1.0, 3e38])}, "w holds numbers that are not finite"),
        ({"w.scale": np.ones(2)}, "w.scale is not one floating-point scale for each row of w"),
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
    message = r"model\.safetensors: truncated, damaged.*an array of shape \[0, 9223372036854775808\]"
    with pytest.raises(ModelFormatError, match=message):
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


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_16_bits_that_are_to_be_float32_stay_on_disk_and_are_the_same_numbers(tmp_path, half):
    """Joined matrices too; float16 that is to be bfloat16 is rounded as ever."""
    folder = save_target(tiny_target(), tmp_path / "target", dtype=half)
    whole, stored = load_decoder(folder, dtype=torch.float32), load_stored_decoder(folder, FLOAT32)
    narrow = as_array(torch.empty(0, dtype=half)).dtype
    for ours, theirs in zip(stored.layers, whole.layers, strict=True):
        for name, weight in theirs.named_parameters():
            assert ours[name].dtype == narrow
            assert np.array_equal(ours[name].astype(np.float32), as_array(weight))
    ids = np.array([[3, 1, 4]])
    assert np.array_equal(stored.embedded(ids), as_array(whole.embedding(torch.from_numpy(ids))))
    rounded = load_stored_decoder(folder, BFLOAT16)
    assert rounded.embedding.weight.dtype == rounded.layers[0]["qkv.weight"].dtype == BFLOAT16


def test_states_and_norms_are_the_decoders():
    decoder = tiny_target()
    stored, ids = stored_form(decoder), np.array([[3, 1, 4]])
    x_BTD = stored.embedded(ids)
    assert np.array_equal(x_BTD, as_array(decoder.embedding(torch.from_numpy(ids))))
    expected = decoder.normalise(torch.from_numpy(x_BTD))
    torch.testing.assert_close(torch.from_numpy(stored.normalise(x_BTD)), expected)


def test_tables_of_many_positions_take_little_more_memory_than_is_counted_and_have_the_bits_of_each_position():
    config = replace(tiny_config(), head_dim=64, rope_theta=1e6)
    tracemalloc.start()
    tables = rotary_tables(replace(config, max_position=20_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * sum(table.nbytes for table in tables)
    for position in (0, 4095, 4096, 19_999):
        angles = position * 1e6 ** -(np.arange(0, 64, 2) / 64)
        for table, function in zip(tables, (np.cos, np.sin), strict=True):
            assert np.array_equal(table[position], np.tile(function(angles), 2).astype(np.float32))


def test_a_shell_has_no_layers_and_a_missing_tensor_is_named(tmp_path):
    folder = save_target(tiny_target(), tmp_path / "target")
    shell = load_stored_decoder(folder, FLOAT32, with_layers=False)
    assert shell.layers == []
    assert shell.config.num_layers == 4
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_hidden_layers": 4', '"num_hidden_layers": 5'))
    with pytest.raises(ModelError, match=r"model\.layers\.4.* is missing"):
        load_stored_decoder(folder, FLOAT32)
