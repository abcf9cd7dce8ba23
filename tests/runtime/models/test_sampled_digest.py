"""Whether a folder is told apart from another of its name."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.storage.sampled_digest import sampled_sha256


@pytest.fixture
def folder(tiny_folders, tmp_path):
    return shutil.copytree(tiny_folders.target, tmp_path / "mine")


def test_a_copy_is_the_same_and_so_is_one_with_notes(folder, tiny_folders):
    (folder / "README.md").write_text("mine")
    assert sampled_sha256(folder) == sampled_sha256(tiny_folders.target)


def test_any_vector_trained_again_is_another_model(folder):
    before, weights = sampled_sha256(folder), load_file(folder / "model.safetensors")
    for name in weights:
        save_file(weights | {name: weights[name] + 0.01}, folder / "model.safetensors")
        assert sampled_sha256(folder) != before, name


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_another_tokenizer_or_configuration_is_another_model(folder, name):
    before, path = sampled_sha256(folder), folder / name
    raw = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(raw | {"eos_token_id": [7]}))
    assert sampled_sha256(folder) != before


def test_older_special_tokens_are_another_model_where_they_are_read(folder):
    settings, tokens = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    before = sampled_sha256(folder)
    tokens.write_text('{"bos_token": "w1"}')
    assert sampled_sha256(folder) != before
    settings.write_text('{"added_tokens_decoder": {}}')
    unread = sampled_sha256(folder)
    tokens.unlink()
    assert sampled_sha256(folder) == unread


def test_an_empty_matrix_is_none_to_sample(folder):
    before, weights = sampled_sha256(folder), load_file(folder / "model.safetensors")
    save_file(weights | {"more": torch.zeros(0, 3)}, folder / "model.safetensors")
    assert sampled_sha256(folder) != before
