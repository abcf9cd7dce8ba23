"""One specification of every kind of folder with trained weights: saved, loaded, shared with its target, refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.eagle.folder import load_eagle1, load_eagle3, save_eagle
from runtime.drafters.hydra.drafter import load_hydra, save_hydra
from runtime.drafters.language_model.folder import add_streams, load_draft, save_draft
from runtime.drafters.medusa.folder import load_medusa, save_medusa
from runtime.drafters.streams.drafter import load_streams, save_streams
from runtime.models.decoder import causal_mask
from runtime.models.kv_cache import KVCache
from runtime.target.early_exits import ExitHeads, load_exits, save_exits
from tests.runtime.plain import features
from tests.tiny_eagle import tiny_eagle1, tiny_eagle3
from tests.tiny_heads import KEPT, PATHS, TEXT, run, tiny_hydra, tiny_medusa, tree_schedule
from tests.tiny_models import VOCAB_SIZE, tiny_adapters, tiny_draft, tiny_streams, tiny_target

LAYERS = (1, 2, 3)
STREAM_PATHS = ((0,), (1,), (0, 0), (0, 0, 1))
METADATA = {"seed": 7}


class Kind(NamedTuple):
    """How weights of a kind are made, saved and loaded."""

    make: Callable[[Any], Any]
    save: Callable[[Any, Path, Any], None]
    load: Callable[..., Any]
    """Of folder, target and dtype."""
    module: Callable[[Any], Any]
    """The module in what was loaded."""
    fields: dict[str, Any]
    """Of the config, besides those of every kind."""
    missing: str
    """A tensor of every such folder."""


def _exits(target):
    return ExitHeads(adapters=tiny_adapters(target, (3, 1)), kept_ids=KEPT)


def _as_module(exits):
    return torch.nn.ModuleDict({str(layer): adapter for layer, adapter in exits.adapters.items()})


def _save_exits(exits, folder, target):
    save_exits(exits, folder, target=target, target_name="tiny-target", metadata=METADATA)


def _save_heads(save):
    def write(heads, folder, target):
        save(heads, PATHS, folder, target=target, target_name="tiny-target", metadata=METADATA)

    return write


def _save_eagle(head, folder, _target):
    save_eagle(head, folder, feature_layers=LAYERS, target_name="tiny-target", metadata=METADATA)


def _save_streams(streams, folder, target):
    save_streams(
        streams, STREAM_PATHS, folder, kept_ids=KEPT, target=target, target_name="tiny-target", metadata=METADATA
    )


def _save_draft(draft, folder, _target):
    save_draft(draft, folder, target_name="tiny-target", metadata=METADATA)


def _load_streams(folder, target, *, dtype):
    return load_streams(folder, target.to(dtype))


_TREE = {"paths": [list(path) for path in PATHS]}
KINDS = {
    "draft": Kind(
        lambda target: tiny_draft(target, exit_features=(1, 3), feature_layer=1),
        _save_draft,
        load_draft,
        lambda draft: draft,
        {"exit_features": [1, 3], "source_layers": [1, 2, 4], "quantization_format": "int8-symmetric-per-row"},
        "fuse.weight",
    ),
    "medusa": Kind(
        tiny_medusa,
        _save_heads(save_medusa),
        load_medusa,
        lambda drafter: drafter.heads,
        _TREE,
        "heads.0.blocks.0.bias",
    ),
    "hydra": Kind(
        tiny_hydra, _save_heads(save_hydra), load_hydra, lambda drafter: drafter.model, _TREE, "own.0.up.bias"
    ),
    "eagle1": Kind(tiny_eagle1, _save_eagle, load_eagle1, lambda drafter: drafter.head, {}, "fuse.weight"),
    "eagle3": Kind(
        tiny_eagle3,
        _save_eagle,
        load_eagle3,
        lambda drafter: drafter.head,
        {"feature_layers": [1, 2, 3]},
        "fuse.weight",
    ),
    "streams": Kind(
        tiny_streams,
        _save_streams,
        _load_streams,
        lambda tree: tree.model,
        {"num_streams": 3, "start_layer": 2, "rank": 2, "paths": [list(path) for path in STREAM_PATHS]},
        "embedding",
    ),
    "exits": Kind(_exits, _save_exits, load_exits, _as_module, {"exit_layers": [1, 3]}, "1.norm"),
}
TREES = ("medusa", "hydra", "streams")


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


@pytest.fixture
def kind(name):
    return KINDS[name]


@pytest.fixture
def made(kind, target):
    return kind.make(target)


@pytest.fixture
def folder(kind, made, target, tmp_path):
    kind.save(made, tmp_path / "trained", target)
    return tmp_path / "trained"


def change_config(folder, **changes) -> None:
    """Change fields of a config; those that become None are removed."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def change_tensors(folder, change) -> None:
    """Change the stored tensors and keep the checksum true."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    change_config(folder, weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def refuses(kind, folder, target, message, error=ModelFormatError) -> None:
    with pytest.raises(error, match=message):
        kind.load(folder, target, dtype=torch.float32)


def test_weights_come_back_up_to_the_rounding_of_their_matrices(kind, made, folder, target) -> None:
    loaded = kind.module(kind.load(folder, target, dtype=torch.float32))
    stored = dict((_as_module(made) if isinstance(made, ExitHeads) else made).named_parameters())
    own = {id(weight) for weight in target.parameters()}
    rounded = 0
    for name, weight in loaded.named_parameters():
        if id(weight) in own:
            continue
        rounding = stored[name].abs().amax(-1, keepdim=True) / 127 / 2 * 1.01 + 1e-9
        if weight.dim() == 1 or name.endswith("affine.weight"):
            rounding = stored[name].abs() / 2**8
        assert bool(((weight - stored[name]).abs() <= rounding).all()), name
        rounded += not torch.equal(weight, stored[name])
    assert rounded, "int8 must have rounded something"


def test_rows_of_the_target_are_shared_and_none_of_them_is_stored(kind, folder, target) -> None:
    tensors = load_file(folder / "model.safetensors")
    rows = {(VOCAB_SIZE, 16), (len(KEPT), 16)}
    assert not [name for name, tensor in tensors.items() if tuple(tensor.shape) in rows]
    of_decoder = {name for name in tensors if name.startswith(("layers.", "embedding")) and "base" in name}
    assert not of_decoder
    loaded = kind.load(folder, target, dtype=torch.float32)
    for owner in (getattr(loaded, "head", None), getattr(loaded, "decoder", None)):
        if owner is not None:
            assert owner.embedding.weight.data_ptr() == target.embedding.weight.data_ptr()
            assert torch.equal(owner.lm_head.weight, target.lm_head.weight[KEPT])


def test_the_two_maps_lead_from_draft_ids_to_target_ids_and_back(folder) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert [index + offset for index, offset in enumerate(tensors["d2t"].tolist())] == KEPT.tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == KEPT.tolist()


def test_the_config_names_kind_target_and_how_it_was_trained(name, kind, folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == f"mirrorsd_{name}"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny-target"
    assert config["metadata"] == METADATA
    assert {field: config[field] for field in kind.fields} == kind.fields


def test_weights_take_the_type_asked_for_and_the_target_keeps_its_own(name, kind, folder, target) -> None:
    if name == "streams":
        pytest.skip("streams have the type of their target")
    loaded = kind.module(kind.load(folder, target, dtype=torch.bfloat16))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in target.state_dict().values()} == {torch.float32}
    assert target.rotary.cos_PH.dtype == torch.float32


def test_another_target_is_refused_by_shape_and_by_its_rows(kind, folder) -> None:
    trained = "was trained for tiny-target"
    for changes, message in (
        ({"hidden_size": 32}, f"{trained} with hidden_size 16; this target has hidden_size 32"),
        ({"vocab_size": 60}, "with vocab_size 61; this target has vocab_size 60"),
        ({"rope_theta": 5e5}, "with rope_theta 10000.0; this target has rope_theta 500000.0"),
        ({"seed": 9}, f"{trained}; the embedding of this target is another"),
    ):
        refuses(kind, folder, tiny_target(**changes), message, ModelError)


def test_a_missing_and_an_unknown_tensor_are_named(kind, folder, target) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"extra": torch.ones(2)}))
    refuses(kind, folder, target, "model.safetensors: unknown tensor 'extra'")
    for name in (kind.missing, "target_probe", "d2t", "t2d"):
        change_tensors(folder, lambda tensors, name=name: (tensors.pop("extra", None), tensors.pop(name)))
        refuses(kind, folder, target, rf"model.safetensors: the tensor '{name}' is missing")


@pytest.mark.parametrize("name", ["draft"])
def test_maps_that_contradict_each_other_and_files_that_are_none_are_refused(kind, folder, target) -> None:
    def shift(tensors) -> None:
        tensors["d2t"][3] += 1

    change_tensors(folder, shift)
    refuses(kind, folder, target, "t2d and d2t do not map 31 draft ids")
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    change_config(folder, weights_sha256=hashlib.sha256(b"not weights at all").hexdigest())
    refuses(kind, folder, target, r"model.safetensors: not a safetensors file")
    (folder / "config.json").write_text("{")
    refuses(kind, folder, target, r"config.json: .*Invalid JSON")


def test_a_truncated_and_a_missing_file_are_named(kind, folder, target) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    refuses(kind, folder, target, r"model.safetensors: truncated, damaged, or not the file")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        refuses(kind, folder, target, f"{name}: no such file; a drafter folder holds")


def test_a_folder_of_another_kind_is_refused(name, folder, target) -> None:
    for other, kind in KINDS.items():
        if other != name:
            refuses(kind, folder, target, rf"config\.json: speculators_model_type: .*found 'mirrorsd_{name}'")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("draft", {"quantization_format": "int4"}, "quantization_format: .*'int8-symmetric-per-row', found 'int4'"),
        ("draft", {"source_layers": None}, "source_layers: Field required"),
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
def test_a_wrong_config_is_refused_with_its_path(kind, folder, target, changes, message) -> None:
    change_config(folder, **changes)
    refuses(kind, folder, target, rf"config.json: (.*)({message})", ModelError)


@pytest.mark.parametrize("name", ["draft"])
def test_a_write_that_fails_keeps_what_was_there(kind, made, folder, target, monkeypatch) -> None:
    def full(self, _target) -> None:
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ModelError, match="cannot be written .*No space left"):
        kind.save(made, folder, target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# What is loaded works


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_loaded_heads_draft_a_tree_of_kept_ids_and_tokens_of_the_prompt(name, kind, folder, target, dtype) -> None:
    target = target.to(dtype)
    drafter = kind.load(folder, target, dtype=dtype)
    assert (drafter.paths, drafter.feature_layers, drafter.methods) == (PATHS, (4,), (name,))
    known = features(target, TEXT, [4])[:-1]
    drafter.prefill(TEXT, schedule=tree_schedule(name), capacity=32, features_TE=known)
    window, _ = run(drafter.rollout())
    assert len(window.tokens) == len(PATHS)
    assert set(window.tokens) <= {*KEPT.tolist(), *TEXT}


@pytest.mark.parametrize(("name", "method", "layers"), [("eagle1", "eagle2", (4,)), ("eagle3", "eagle3", LAYERS)])
def test_an_eagle_drafter_names_the_layers_it_reads_and_its_method(kind, folder, target, method, layers) -> None:
    drafter = kind.load(folder, target, dtype=torch.bfloat16)
    assert (drafter.methods, drafter.feature_layers, drafter.raw_features) == ((method,), layers, False)


@pytest.mark.parametrize("name", ["streams"])
def test_loaded_streams_draft_in_the_type_of_their_target(kind, folder, target) -> None:
    loaded = kind.load(folder, target, dtype=torch.bfloat16)
    cache = KVCache(target.config, 8, dtype=torch.bfloat16)
    cache.set_length(2)
    window = loaded.draft(torch.ones(1, 16, dtype=torch.bfloat16), cache, loaded.paths)
    assert loaded.paths == STREAM_PATHS
    assert len(window.tokens) == len(STREAM_PATHS)
    assert set(window.tokens) <= set(KEPT.tolist())


@pytest.mark.parametrize("name", ["draft"])
def test_a_loaded_draft_computes_nearly_what_the_saved_one_does(kind, made, folder, target) -> None:
    loaded = kind.load(folder, target, dtype=torch.float32)
    assert loaded.config == made.config
    ids = torch.tensor([[5, 9, 2, 40, 33]])
    given = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    expected, found = (
        model(ids, positions=torch.arange(5), mask=causal_mask(5, torch.float32), features_BTE=given)
        for model in (made, loaded)
    )
    assert torch.allclose(expected, found, atol=0.15)


@pytest.mark.parametrize("name", ["exits"])
def test_affine_maps_of_exits_are_kept_in_bfloat16(folder) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert tensors["3.affine.weight"].dtype == torch.bfloat16
    assert tensors["3.up.weight"].dtype == torch.int8


@pytest.mark.parametrize("name", ["exits"])
def test_streams_are_added_to_the_folder_of_a_draft_alone(folder, target, tmp_path) -> None:
    with pytest.raises(ModelFormatError, match="found 'mirrorsd_exits'"):
        add_streams(folder, tiny_streams(target), tmp_path / "with", training={})
