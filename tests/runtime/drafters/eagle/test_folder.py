import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.eagle.folder import load_eagle1, load_eagle3, save_eagle
from tests.tiny_eagle import KEPT, tiny_eagle1, tiny_eagle3
from tests.tiny_models import tiny_target

LAYERS = (1, 2, 3)


@pytest.fixture
def target():
    return tiny_target()


@pytest.fixture(params=["eagle1", "eagle3"])
def kind(request):
    return request.param


@pytest.fixture
def head(kind, target):
    return tiny_eagle1(target) if kind == "eagle1" else tiny_eagle3(target)


@pytest.fixture
def folder(head, tmp_path):
    save_eagle(head, tmp_path / "head", feature_layers=LAYERS, target_name="tiny-target", metadata={"seed": 7})
    return tmp_path / "head"


@pytest.fixture
def load(kind):
    return load_eagle1 if kind == "eagle1" else load_eagle3


def change_tensors(folder, change):
    """Change the stored tensors and keep the checksum true."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    config = json.loads((folder / "config.json").read_text())
    config["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


def test_a_head_comes_back_up_to_the_rounding_of_its_matrices(folder, head, target, load) -> None:
    loaded = load(folder, target, dtype=torch.float32).head
    stored = dict(head.named_parameters())
    for name, weight in loaded.named_parameters():
        rounding = stored[name].abs().amax(-1, keepdim=True) / 127 / 2 * 1.01
        if weight.dim() == 1:
            rounding = stored[name].abs() / 2**8
        assert bool(((weight - stored[name]).abs() <= rounding).all()), name
    assert not torch.equal(loaded.layer.down.weight, head.layer.down.weight), "int8 must have rounded something"


def test_rows_of_the_target_are_shared_and_not_stored(folder, target, load) -> None:
    loaded = load(folder, target, dtype=torch.float32).head
    assert loaded.embedding.weight.data_ptr() == target.embedding.weight.data_ptr()
    assert torch.equal(loaded.lm_head.weight, target.lm_head.weight[KEPT])
    tensors = load_file(folder / "model.safetensors")
    assert {"embedding.weight", "lm_head.weight"}.isdisjoint(tensors)


def test_the_drafter_says_what_it_reads_and_which_method_it_serves(folder, target, load, kind) -> None:
    drafter = load(folder, target, dtype=torch.bfloat16)
    assert drafter.methods == (("eagle2",) if kind == "eagle1" else ("eagle3",))
    assert drafter.feature_layers == ((4,) if kind == "eagle1" else LAYERS)
    assert not drafter.raw_features
    assert {weight.dtype for weight in drafter.head.parameters()} == {torch.bfloat16}


def test_the_config_names_kind_and_target(folder, kind) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == f"mirrorsd_{kind}"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny-target"
    assert config.get("feature_layers") == (None if kind == "eagle1" else [1, 2, 3])
    assert config["metadata"] == {"seed": 7}


def test_a_target_of_another_shape_or_another_target_is_refused(folder, load) -> None:
    with pytest.raises(ModelError, match="with hidden_size 16; this target has hidden_size 32"):
        load(folder, tiny_target(hidden_size=32), dtype=torch.float32)
    with pytest.raises(ModelError, match="the embedding of this target is another"):
        load(folder, tiny_target(seed=9), dtype=torch.float32)


def test_feature_layers_beyond_the_target_are_refused(tmp_path, target) -> None:
    save_eagle(tiny_eagle3(target), tmp_path, feature_layers=(1, 2, 5), target_name="t", metadata={})
    with pytest.raises(ModelError, match=r"feature_layers 5 is outside the target's layers 1\.\.4"):
        load_eagle3(tmp_path, target, dtype=torch.float32)


def test_a_head_of_the_other_kind_is_refused(folder, target, kind) -> None:
    other = load_eagle3 if kind == "eagle1" else load_eagle1
    with pytest.raises(ModelFormatError, match=r"config\.json: speculators_model_type: .*mirrorsd_eagle"):
        other(folder, target, dtype=torch.float32)


def test_missing_and_unknown_tensors_are_named(folder, target, load) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"extra": torch.ones(2)}))
    with pytest.raises(ModelFormatError, match="unknown tensor 'extra'"):
        load(folder, target, dtype=torch.float32)
    change_tensors(folder, lambda tensors: (tensors.pop("extra"), tensors.pop("fuse.weight")))
    with pytest.raises(ModelFormatError, match=r"the tensor 'fuse\.weight' is missing"):
        load(folder, target, dtype=torch.float32)


def test_a_truncated_file_is_refused(folder, target, load) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ModelFormatError, match="truncated, damaged, or not the file"):
        load(folder, target, dtype=torch.float32)
