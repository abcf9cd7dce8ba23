"""Folders of Medusa and of Hydra heads: what they have in common is tested for both."""

import hashlib
import json
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.hydra.folder import load_hydra, save_hydra
from runtime.drafters.medusa.folder import load_medusa, save_medusa
from tests.runtime.plain import features
from tests.tiny_heads import KEPT, PATHS, TEXT, run, tiny_hydra, tiny_medusa, tree_schedule
from tests.tiny_models import tiny_target


class Kind(NamedTuple):
    name: str
    make: Any
    save: Any
    load: Any
    model: str


KINDS = [
    Kind("medusa", tiny_medusa, save_medusa, load_medusa, "heads"),
    Kind("hydra", tiny_hydra, save_hydra, load_hydra, "model"),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture
def target():
    return tiny_target()


@pytest.fixture
def heads(kind, target):
    return kind.make(target)


@pytest.fixture
def folder(kind, heads, target, tmp_path):
    kind.save(heads, PATHS, tmp_path / "heads", target=target, target_name="tiny-target", metadata={"seed": 7})
    return tmp_path / "heads"


def change_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change) -> None:
    """Change the stored tensors and keep the checksum true."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    change_config(folder, weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def test_heads_come_back_up_to_the_rounding_of_their_matrices(kind, folder, heads, target) -> None:
    drafter = kind.load(folder, target, dtype=torch.float32)
    loaded = getattr(drafter, kind.model)
    assert (loaded.config, drafter.paths, drafter.feature_layers) == (heads.config, PATHS, (4,))
    assert loaded.kept_ids.tolist() == KEPT.tolist()
    stored = dict(heads.named_parameters())
    for name, weight in loaded.named_parameters():
        rounding = stored[name].abs().amax(-1, keepdim=True) / 127 / 2 * 1.01
        if weight.dim() == 1:
            rounding = stored[name].abs() / 2**8
        assert bool(((weight - stored[name]).abs() <= rounding).all()), name


def test_nothing_of_the_target_is_stored(folder, target) -> None:
    tensors = load_file(folder / "model.safetensors").values()
    of_the_target = {tuple(target.embedding.weight.shape), (len(KEPT), 16)}
    assert not [tensor for tensor in tensors if tuple(tensor.shape) in of_the_target]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_heads_draft_a_tree_of_kept_ids_and_tokens_of_the_prompt(kind, folder, target, dtype) -> None:
    target = target.to(dtype)
    drafter = kind.load(folder, target, dtype=dtype)
    known = features(target, TEXT, [4])[:-1]
    drafter.prefill(TEXT, schedule=tree_schedule(kind.name), capacity=32, features_TE=known)
    window, _ = run(drafter.rollout())
    assert len(window.tokens) == len(PATHS)
    assert set(window.tokens) <= {*KEPT.tolist(), *TEXT}


def test_the_target_stays_in_its_own_type(kind, folder, target) -> None:
    kind.load(folder, target, dtype=torch.bfloat16)
    assert {weight.dtype for weight in target.state_dict().values()} == {torch.float32}
    assert target.rotary.cos_PH.dtype == torch.float32


def test_the_config_names_kind_target_tree_and_how_it_was_trained(kind, folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == f"mirrorsd_{kind.name}"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny-target"
    assert config["paths"] == [list(path) for path in PATHS]
    assert config["metadata"] == {"seed": 7}


def test_a_target_of_another_shape_is_refused(kind, folder) -> None:
    with pytest.raises(ModelError, match="with hidden_size 16; this target has hidden_size 32"):
        kind.load(folder, tiny_target(hidden_size=32), dtype=torch.float32)


def test_another_target_of_the_same_shape_is_refused(kind, folder) -> None:
    with pytest.raises(ModelError, match="was trained for tiny-target; the embedding of this target is another"):
        kind.load(folder, tiny_target(seed=9), dtype=torch.float32)


def test_a_truncated_file_is_refused(kind, folder, target) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelFormatError, match=r"model.safetensors: truncated, damaged"):
        kind.load(folder, target, dtype=torch.float32)


def test_an_unknown_tensor_is_refused(kind, folder, target) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"extra.weight": torch.zeros(2, 2)}))
    with pytest.raises(ModelFormatError, match=r"unknown tensor 'extra.weight'"):
        kind.load(folder, target, dtype=torch.float32)


def test_a_missing_tensor_is_named(kind, folder, target) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("d2t"))
    with pytest.raises(ModelFormatError, match="the tensor 'd2t' is missing"):
        kind.load(folder, target, dtype=torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": []}, "paths has no entry"),
        ({"paths": [[1, 0], [1]]}, r"path 0 of a tree is \[1, 0\]"),
        ({"num_heads": 0}, "num_heads: .* greater than or equal to 1"),
        ({"num_heads": 3}, r"paths has \[0, 0, 0, 0\]; expected at most 3 ranks"),
        ({"surprise": 1}, "surprise"),
        ({"speculators_model_type": "mirrorsd_draft"}, "speculators_model_type"),
    ],
)
def test_a_wrong_config_is_refused_with_its_path(kind, folder, target, changes, message) -> None:
    change_config(folder, **changes)
    with pytest.raises(ModelFormatError, match=rf"config.json: (.*)({message})"):
        kind.load(folder, target, dtype=torch.float32)
