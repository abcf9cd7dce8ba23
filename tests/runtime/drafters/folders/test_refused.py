"""Of every kind: a folder that is damaged, contradicts itself or is for another target is refused by what is wrong."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.language_model.folder import add_streams
from tests.runtime.drafters.folders.kinds import KINDS
from tests.tiny_models import tiny_streams, tiny_target

TREES = ("medusa", "hydra", "streams")


def change_config(folder, **changes):
    """Change fields of a config; those that become None are removed."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def change_tensors(folder, change):
    """Change the stored tensors and keep the checksum true."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    change_config(folder, weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def refuses(kind, folder, target, message, error=ModelFormatError):
    with pytest.raises(error, match=message):
        kind.load(folder, target, dtype=torch.float32)


def test_another_target_is_refused_by_shape_and_by_its_rows(kind, folder):
    trained = "was trained for tiny-target"
    for changes, message in (
        ({"hidden_size": 32}, f"{trained} with hidden_size 16; this target has hidden_size 32"),
        ({"vocab_size": 60}, "with vocab_size 61; this target has vocab_size 60"),
        ({"rope_theta": 5e5}, "with rope_theta 10000.0; this target has rope_theta 500000.0"),
        ({"seed": 9}, f"{trained}; the embedding of this target is another"),
    ):
        refuses(kind, folder, tiny_target(**changes), message, ModelError)


def test_a_missing_and_an_unknown_tensor_are_named(kind, folder, target):
    change_tensors(folder, lambda tensors: tensors.update({"extra": torch.ones(2)}))
    refuses(kind, folder, target, "model.safetensors: unknown tensor 'extra'")
    for name in (kind.missing, "target_probe", "d2t", "t2d"):
        change_tensors(folder, lambda tensors, name=name: (tensors.pop("extra", None), tensors.pop(name)))
        refuses(kind, folder, target, rf"model.safetensors: the tensor '{name}' is missing")


@pytest.mark.parametrize("name", ["draft"])
def test_maps_that_contradict_each_other_and_files_that_are_none_are_refused(kind, folder, target):
    def shift(tensors):
        tensors["d2t"][3] += 1

    change_tensors(folder, shift)
    refuses(kind, folder, target, "t2d and d2t do not map 31 draft ids")
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    change_config(folder, weights_sha256=hashlib.sha256(b"not weights at all").hexdigest())
    refuses(kind, folder, target, r"model.safetensors: truncated, damaged, or not a safetensors file")
    (folder / "config.json").write_text("{")
    refuses(kind, folder, target, r"config.json: not valid JSON")


def test_a_truncated_and_a_missing_file_are_named(kind, folder, target):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    refuses(kind, folder, target, r"model.safetensors: truncated, damaged, or not the file")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        refuses(kind, folder, target, f"{name}: no such file; a drafter folder holds")


def test_a_folder_of_another_kind_is_refused(name, folder, target):
    for other, kind in KINDS.items():
        if other != name:
            refuses(kind, folder, target, rf"config\.json: speculators_model_type: .*found 'mirrorsd_{name}'")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("draft", {"quantization_format": "int4"}, "quantization_format: .*'int8-symmetric-per-row', found 'int4'"),
        ("draft", {"colour": "red"}, "colour: Extra inputs are not permitted, found 'red'"),
        ("draft", {"feature_layer": 5}, r"feature_layer 5 is outside 0\.\.2"),
        ("draft", {"exit_features": [9]}, r"exit_features 9 is outside the target's layers 1\.\.4"),
        ("draft", {"source_layers": [1, 2, 7]}, r"source_layers 7 is outside the target's layers 1\.\.4"),
        ("eagle3", {"feature_layers": [1, 2, 5]}, r"feature_layers 5 is outside the target's layers 1\.\.4"),
        ("exits", {"exit_layers": [1, 5]}, r"exit_layers 5 is outside the target's layers 1\.\.4"),
        ("streams", {"start_layer": 4}, r"start_layer 4 is outside 1\.\.3"),
        ("streams", {"rank": 0}, "rank: .* greater than or equal to 1"),
        *(
            (name, changes, message)
            for name in TREES
            for changes, message in (
                ({"paths": []}, "paths has no entry"),
                ({"paths": [[1, 0], [1]]}, r"path 0 of a tree is \[1, 0\]"),
                ({"paths": [[0]], "num_streams" if name == "streams" else "num_heads": 0}, "than or equal to 1"),
                (
                    {"paths": [[0] * depth for depth in range(1, 6)]},
                    r"paths has \[0, 0, 0, 0(, 0)?\]; expected at most [34] ranks",
                ),
            )
        ),
    ],
)
def test_a_wrong_config_is_refused_with_its_path(kind, folder, target, changes, message):
    change_config(folder, **changes)
    refuses(kind, folder, target, rf"config.json: (.*)({message})", ModelError)


@pytest.mark.parametrize("name", ["eagle3"])
def test_a_head_that_reads_no_layer_is_refused_by_its_config(kind, folder, target):
    change_tensors(folder, lambda tensors: tensors.update({"fuse.weight": tensors["fuse.weight"][:, :0].contiguous()}))
    change_config(folder, feature_layers=[])
    refuses(kind, folder, target, "config.json: feature_layers: .* at least 1 item")


@pytest.mark.parametrize("name", ["exits"])
def test_streams_are_added_to_the_folder_of_a_draft_alone(folder, target, tmp_path):
    with pytest.raises(ModelFormatError, match="found 'mirrorsd_exits'"):
        add_streams(folder, tiny_streams(target), tmp_path / "with", training={})
