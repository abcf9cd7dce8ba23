"""A model of which only the shape is there: every weight has memory of its own, and the same numbers every time."""

import json

import numpy as np
import pytest
import torch

from decoding.errors import ModelError, ModelFormatError
from decoding.messages import NO_WINDOW
from runtime.arrays import BFLOAT16, as_tensor
from runtime.backends.eager import EagerBackend
from runtime.backends.self_test import is_row_invariant
from runtime.models.config import ModelConfig, decoder_shapes
from runtime.models.decoder import load_decoder
from runtime.models.model_folder import has_random_weights, resolve_model
from runtime.models.vocabulary import ranked_ids
from runtime.storage.stored_decoder import random_arrays
from runtime.target.target_model import TargetModel
from tests.runtime.models.test_hf_config import LLAMA, OPT

TINY = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 61, "num_key_value_heads": 2, "head_dim": 8}
SLICE_OF_14B = TINY | {
    "vocab_size": 4096,
    "num_hidden_layers": 1,
    "hidden_size": 5120,
    "intermediate_size": 17_408,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""One layer of Qwen3-14B, with a small vocabulary."""


@pytest.fixture
def shape(tmp_path, empty_cache):
    """The folder that `shape:` gives for a config."""

    def shape(raw):
        folder = tmp_path / "my-model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(raw))
        return resolve_model(f"shape:{folder}")

    return shape


@pytest.mark.parametrize("raw", [TINY, OPT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_numbers_come_out_every_time(shape, raw, dtype):
    first, second = (dict(load_decoder(shape(raw), dtype=dtype).named_parameters()) for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    matrices = [tensor for tensor in first.values() if tensor.dim() == 2]
    assert {tensor.dtype for tensor in matrices} == {dtype}
    assert not any(torch.equal(a, b) for a in matrices for b in matrices if a.shape == b.shape and a is not b)


@pytest.mark.parametrize("raw", [TINY, OPT])
def test_such_a_model_decodes_and_its_rows_are_invariant(shape, raw):
    decoder = load_decoder(shape(raw), dtype=torch.bfloat16)
    target = TargetModel.of(decoder)
    target.prefill([1, 2, 3], capacity=40)
    tokens = [target.verify(NO_WINDOW).next_token for _ in range(20)]
    assert all(0 <= token < 61 for token in tokens)
    assert is_row_invariant(EagerBackend(decoder))


def test_a_layer_of_a_large_model(shape):
    """Rows are all different, so that the best logits do not tie; states stay finite and of the scale they had."""
    config = ModelConfig.from_folder(shape(SLICE_OF_14B))
    decoder = load_decoder(shape(SLICE_OF_14B), dtype=torch.bfloat16)
    assert sum(parameter.numel() for parameter in decoder.layers.parameters()) > config.num_layer_parameters > 3e8
    addresses = {parameter.data_ptr() for parameter in decoder.parameters()}
    assert len(addresses) == len(list(decoder.parameters()))
    with torch.inference_mode():
        x_BTD = decoder.embedding(torch.arange(4)[None])
        x_BTD = decoder.run_layers(x_BTD, 0, 1, positions=torch.arange(4), mask=None)
        logits = decoder.logits(x_BTD)[0]
    assert torch.isfinite(logits).all()
    assert 0.3 < logits.float().std() < 3
    assert len(set(ranked_ids(logits, 8)[0].tolist())) == 8
    for matrix in (decoder.lm_head.weight, decoder.layers[0].down.weight):
        assert len(matrix[:, :8].float().unique(dim=0)) == len(matrix)


@pytest.mark.parametrize("raw", [TINY, SLICE_OF_14B])
def test_shared_weights_are_the_same_numbers_in_the_memory_of_one_block(shape, raw):
    config = ModelConfig.from_folder(shape(raw))
    own = dict(load_decoder(shape(raw), dtype=torch.bfloat16).named_parameters())
    shared = random_arrays(decoder_shapes(config), config.random_seed, BFLOAT16)
    assert own.keys() == shared.keys()
    assert all(torch.equal(weight, as_tensor(shared[name])) for name, weight in own.items())
    matrices = [array for array in shared.values() if array.ndim == 2]
    blocks = {id(block_of(array)): block_of(array).nbytes for array in matrices}
    assert len(blocks) == len({array.shape[1] for array in matrices})
    assert sum(blocks.values()) < 50e6


def block_of(array):
    """The memory that an array is a window onto."""
    while isinstance(array.base, np.ndarray) or hasattr(array.base, "base"):
        array = array.base
    return array


def test_a_folder_without_weights_is_no_shape_unless_asked_for(tmp_path, empty_cache):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert not has_random_weights(tmp_path)
    with pytest.raises(ModelError, match=r"no \*\.safetensors file.* name shape:"):
        load_decoder(tmp_path, dtype=torch.float32)
    found = resolve_model(f"shape:{tmp_path / 'config.json'}")
    assert has_random_weights(found)
    assert found == resolve_model(f"shape:{tmp_path}")
    assert found.parent == empty_cache / "models"
    assert ModelConfig.from_folder(found).random_seed == 0


def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(ModelError, match="architecture 'MambaForCausalLM' is not supported"):
        shape({"architectures": ["MambaForCausalLM"]})


def test_a_shape_that_is_not_there_is_refused(empty_cache):
    with pytest.raises(ModelError, match="shape: takes the path of a Hugging Face config.json"):
        resolve_model("shape:/nowhere/at-all")


@pytest.mark.parametrize("seed", [-1, "0", 1.5])
def test_a_seed_is_a_number(tmp_path, seed):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"mirrorsd_random_weights": seed}))
    with pytest.raises(ModelFormatError, match="mirrorsd_random_weights"):
        load_decoder(tmp_path, dtype=torch.float32)
