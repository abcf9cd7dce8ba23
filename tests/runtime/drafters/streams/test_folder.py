"""Streams on disk: what comes back, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.streams.folder import StreamFolderConfig, load_streams, save_streams
from runtime.models.kv_cache import KVCache
from runtime.storage.weight_folder import load_folder, save_folder
from runtime.target.exit_folder import load_exits
from tests.tiny_models import tiny_streams, tiny_target

PATHS = ((0,), (1,), (0, 0), (0, 0, 1))
KEPT = torch.tensor([0, 1, 5, 9, 33, 60])


@pytest.fixture
def target():
    return tiny_target()


@pytest.fixture
def folder(target, tmp_path):
    save_streams(
        tiny_streams(target),
        PATHS,
        tmp_path / "streams",
        kept_ids=KEPT,
        target=target,
        target_name="tiny-target",
        metadata={"tokens": 10},
    )
    return tmp_path / "streams"


def rewrite(folder, change_config=None, change_tensors=None):
    """The folder again, consistent in itself, with something else in it."""
    config, tensors = load_folder(folder, StreamFolderConfig)
    if change_tensors:
        change_tensors(tensors)
    save_folder(folder, config.model_copy(update=change_config or {}), tensors)


def test_streams_come_back_up_to_rounding_with_their_tree(folder, target) -> None:
    loaded = load_streams(folder, target)
    assert loaded.paths == PATHS
    assert loaded.output.ids.tolist() == KEPT.tolist()
    assert (loaded.num_streams, loaded.start_layer) == (3, 2)
    original = tiny_streams(target).trained
    for name, weight in loaded.model.trained.items():
        assert not torch.equal(weight, original[name]), name
        torch.testing.assert_close(weight, original[name], atol=0.01, rtol=0)


def test_they_draft_in_the_dtype_of_their_target(folder, target) -> None:
    loaded = load_streams(folder, target.to(torch.bfloat16))
    cache = KVCache(target.config, 8, dtype=torch.bfloat16)
    cache.set_length(2)
    window = loaded.draft(torch.ones(1, 16, dtype=torch.bfloat16), cache, PATHS)
    assert len(window.tokens) == len(PATHS)
    assert set(window.tokens) <= set(KEPT.tolist())


def test_none_of_the_targets_own_weights_is_stored(folder) -> None:
    names = load_file(folder / "model.safetensors").keys() - {"t2d", "d2t", "target_probe"}
    assert all(name.removesuffix(".scale").endswith(("embedding", "narrow.weight", "widen.weight")) for name in names)
    assert "layers.1.gate_up.widen.weight" in names


def test_the_config_says_what_they_are_and_how_they_were_trained(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == "mirrorsd_streams"
    assert (config["num_streams"], config["start_layer"], config["rank"]) == (3, 2, 2)
    assert config["metadata"] == {"tokens": 10}


def test_another_target_is_refused(folder) -> None:
    with pytest.raises(ModelError, match="was trained for tiny-target"):
        load_streams(folder, tiny_target(seed=4))


def test_a_target_without_layers_above_the_start_is_refused(folder, target) -> None:
    shallow = tiny_target(num_layers=2)
    shallow.embedding.weight.copy_(target.embedding.weight)
    with pytest.raises(ModelFormatError, match=r"config.json: start_layer 2 is outside 1\.\.1"):
        load_streams(folder, shallow)


def test_sizes_that_cannot_be_are_refused(folder, target) -> None:
    rewrite(folder, {"rank": 0})
    with pytest.raises(ModelFormatError, match=r"config.json: rank: .* greater than or equal to 1"):
        load_streams(folder, target)


def test_a_tree_deeper_than_there_are_streams_is_refused(folder, target) -> None:
    rewrite(folder, {"paths": ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))})
    with pytest.raises(ModelFormatError, match="expected at most 3 ranks"):
        load_streams(folder, target)


def test_a_missing_tensor_is_named(folder, target) -> None:
    rewrite(folder, change_tensors=lambda tensors: tensors.pop("embedding"))
    with pytest.raises(ModelFormatError, match="embedding"):
        load_streams(folder, target)


def test_an_unknown_tensor_is_named(folder, target) -> None:
    rewrite(folder, change_tensors=lambda tensors: tensors.update(surplus=torch.ones(2)))
    with pytest.raises(ModelFormatError, match="unknown tensor 'surplus'"):
        load_streams(folder, target)


def test_a_truncated_file_is_refused(folder, target) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelFormatError, match="truncated, damaged"):
        load_streams(folder, target)


def test_streams_are_no_exits(folder, target) -> None:
    with pytest.raises(ModelFormatError, match="found 'mirrorsd_streams'"):
        load_exits(folder, target, dtype=torch.float32)
