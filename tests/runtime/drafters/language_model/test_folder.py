import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.language_model.folder import load_draft, save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.models.decoder import Decoder, causal_mask
from tests.tiny_models import VOCAB_SIZE, tiny_draft, tiny_target


@pytest.fixture
def target() -> Decoder:
    return tiny_target()


@pytest.fixture
def draft(target: Decoder) -> DraftModel:
    return tiny_draft(target, exit_features=(1, 3), feature_layer=1)


@pytest.fixture
def folder(draft: DraftModel, tmp_path: Path) -> Path:
    save_draft(draft, tmp_path / "draft", target_name="tiny-target", metadata={"seed": 7})
    return tmp_path / "draft"


def change_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del config[key]
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def change_tensors(folder: Path, change) -> None:
    """Change the stored tensors and keep the checksum true."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    change_config(folder, weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_draft_comes_back_up_to_the_rounding_of_its_matrices(folder, draft, target) -> None:
    loaded = load_draft(folder, target, dtype=torch.float32)
    assert loaded.config == draft.config
    assert loaded.kept_ids.tolist() == draft.kept_ids.tolist()
    stored = dict(draft.named_parameters())
    for name, weight in loaded.named_parameters():
        rounding = stored[name].abs().amax(-1, keepdim=True) / 127 / 2 * 1.01
        if weight.dim() == 1:
            rounding = stored[name].abs() / 2**8
        assert bool(((weight - stored[name]).abs() <= rounding).all()), name


def test_a_loaded_draft_speaks_like_the_one_that_was_saved(folder, draft, target) -> None:
    loaded = load_draft(folder, target, dtype=torch.float32)
    ids = torch.tensor([[5, 9, 2, 40, 33]])
    features = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    expected, found = (
        model(ids, positions=torch.arange(5), mask=causal_mask(5, torch.float32), features_BTE=features)
        for model in (draft, loaded)
    )
    assert torch.allclose(expected, found, atol=0.15)
    assert not torch.equal(expected, found), "int8 must have rounded something"


def test_embedding_and_head_are_the_targets_own_and_are_not_stored(folder, draft, target) -> None:
    loaded = load_draft(folder, target, dtype=torch.float32)
    assert loaded.decoder.embedding.weight.data_ptr() == target.embedding.weight.data_ptr()
    assert torch.equal(loaded.decoder.lm_head.weight, target.lm_head.weight[draft.kept_ids])
    names = load_file(folder / "model.safetensors").keys()
    assert not [name for name in names if "embedding" in name or "head" in name]


def test_the_two_maps_lead_from_draft_ids_to_target_ids_and_back(folder, draft) -> None:
    tensors = load_file(folder / "model.safetensors")
    kept = draft.kept_ids.tolist()
    assert [index + offset for index, offset in enumerate(tensors["d2t"].tolist())] == kept
    assert tensors["t2d"].tolist() == [token in kept for token in range(VOCAB_SIZE)]


def test_a_target_in_bfloat16_is_the_same_target(folder, target) -> None:
    loaded = load_draft(folder, target.to(torch.bfloat16), dtype=torch.bfloat16)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}


def test_the_config_names_kind_target_quantisation_and_how_it_was_trained(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == "mirrorsd_draft"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny-target"
    assert config["quantization_format"] == "int8-symmetric-per-row"
    assert config["metadata"] == {"seed": 7}
    assert config["exit_features"] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "was trained for tiny-target with hidden_size 16; this target has hidden_size 32"),
        ({"vocab_size": 60}, "with vocab_size 61; this target has vocab_size 60"),
        ({"rope_theta": 5e5}, "with rope_theta 10000.0; this target has rope_theta 500000.0"),
        ({"num_layers": 2}, "source_layers 4 is outside the target's layers 1..2"),
    ],
)
def test_a_target_of_another_shape_is_refused(folder, changes, message) -> None:
    with pytest.raises(ModelError, match=message):
        load_draft(folder, tiny_target(**changes), dtype=torch.float32)


def test_another_target_of_the_same_shape_is_refused(folder) -> None:
    with pytest.raises(ModelError, match="was trained for tiny-target; the embedding of this target is another"):
        load_draft(folder, tiny_target(seed=9), dtype=torch.float32)


def test_a_missing_and_an_unknown_tensor_are_named(folder, target) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("fuse.weight"))
    with pytest.raises(ModelFormatError, match=r"model.safetensors: the tensor 'fuse.weight' is missing"):
        load_draft(folder, target, dtype=torch.float32)
    change_tensors(folder, lambda tensors: tensors.update({"fuse.weight": torch.ones(16, 32), "x": torch.ones(1)}))
    with pytest.raises(ModelFormatError, match="'fuse.weight.scale'"):
        load_draft(folder, target, dtype=torch.float32)


@pytest.mark.parametrize("name", ["t2d", "d2t", "target_probe"])
def test_a_missing_map_is_named(folder, target, name) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFormatError, match=f"the tensor '{name}' is missing"):
        load_draft(folder, target, dtype=torch.float32)


def test_maps_that_contradict_each_other_are_refused(folder, target) -> None:
    def shift(tensors) -> None:
        tensors["d2t"][3] += 1

    change_tensors(folder, shift)
    with pytest.raises(ModelFormatError, match="t2d and d2t do not map 31 draft ids"):
        load_draft(folder, target, dtype=torch.float32)


def test_a_truncated_weights_file_is_named(folder, target) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelFormatError, match=r"model.safetensors: truncated, damaged"):
        load_draft(folder, target, dtype=torch.float32)


def test_a_weights_file_that_is_no_safetensors_is_named(folder, target) -> None:
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    change_config(folder, weights_sha256=hashlib.sha256(b"not weights at all").hexdigest())
    with pytest.raises(ModelFormatError, match=r"model.safetensors: not a safetensors file"):
        load_draft(folder, target, dtype=torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type: .*'mirrorsd_draft', found 'eagle3'"),
        ({"quantization_format": "int4"}, "quantization_format: .*'int8-symmetric-per-row', found 'int4'"),
        ({"source_layers": None}, "source_layers: Field required"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted, found 'red'"),
        ({"feature_layer": 5}, r"config.json: feature_layer 5 is outside 0\.\.2"),
        ({"exit_features": [9]}, r"config.json: exit_features 9 is outside the target's layers 1\.\.4"),
    ],
)
def test_a_config_that_is_not_of_a_draft_is_refused_with_file_and_field(folder, target, changes, message) -> None:
    change_config(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_draft(folder, target, dtype=torch.float32)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, target, name) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelFormatError, match=f"{name}: no such file; a drafter folder holds"):
        load_draft(folder, target, dtype=torch.float32)


def test_a_config_that_is_no_json_is_named(folder, target) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"config.json: .*Invalid JSON"):
        load_draft(folder, target, dtype=torch.float32)


def test_a_write_that_fails_keeps_the_draft_that_was_there(folder, draft, target, monkeypatch) -> None:
    def full(self, _target) -> None:
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ModelError, match="cannot be written .*No space left"):
        save_draft(draft, folder, target_name="other", metadata={})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
