"""Of every kind: what was saved comes back, next to what is the target's own."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from decoding.errors import ModelError
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.models.kv_cache import KVCache
from runtime.target.early_exits import ExitHeads
from tests.runtime.drafters.folders.kinds import LAYERS, METADATA, STREAM_PATHS, as_module
from tests.runtime.plain import draft_states, features
from tests.tiny_heads import KEPT, PATHS, TEXT, run, tree_schedule
from tests.tiny_models import VOCAB_SIZE


def test_weights_come_back_up_to_the_rounding_of_their_matrices(kind, made, folder, target):
    loaded = kind.module(kind.load(folder, target, dtype=torch.float32))
    stored = dict((as_module(made) if isinstance(made, ExitHeads) else made).named_parameters())
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


def test_rows_of_the_target_are_shared_and_none_of_them_is_stored(kind, folder, target):
    tensors = load_file(folder / "model.safetensors")
    rows = {(VOCAB_SIZE, 16), (len(KEPT), 16)}
    assert not [name for name, tensor in tensors.items() if tuple(tensor.shape) in rows]
    of_decoder = {name for name in tensors if name.startswith(("layers.", "embedding")) and "base" in name}
    assert not of_decoder
    loaded = kind.load(folder, target, dtype=torch.float32)
    module = kind.module(loaded)
    held = [*module.parameters(), *module.buffers()]
    if not isinstance(loaded, ExitHeads):
        output = module.output if hasattr(module, "output") else loaded.output
        assert torch.equal(output.rows, target.lm_head.weight[KEPT])
        held.append(output._target_VD)
    shared = {matrix.weight.data_ptr() for matrix in (target.embedding, target.lm_head)}
    assert {weight.data_ptr() for weight in held if len(weight) == VOCAB_SIZE} <= shared


def test_the_two_maps_lead_from_draft_ids_to_target_ids_and_back(folder):
    tensors = load_file(folder / "model.safetensors")
    assert [index + offset for index, offset in enumerate(tensors["d2t"].tolist())] == KEPT.tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == KEPT.tolist()


def test_the_config_names_kind_target_and_how_it_was_trained(name, kind, folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == f"mirrorsd_{name}"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny-target"
    assert config["metadata"] == METADATA
    assert {field: config[field] for field in kind.fields} == kind.fields


def test_weights_take_the_type_asked_for_and_the_target_keeps_its_own(name, kind, folder, target):
    if name == "streams":
        pytest.skip("streams have the type of their target")
    loaded = kind.module(kind.load(folder, target, dtype=torch.bfloat16))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in target.state_dict().values()} == {torch.float32}
    assert target.rotary.cos_PH.dtype == torch.float32


@pytest.mark.parametrize("name", ["exits"])
def test_affine_maps_of_exits_are_kept_in_bfloat16(folder):
    tensors = load_file(folder / "model.safetensors")
    assert tensors["3.affine.weight"].dtype == torch.bfloat16
    assert tensors["3.up.weight"].dtype == torch.int8


@pytest.mark.parametrize("name", ["draft"])
def test_a_write_that_fails_keeps_what_was_there(kind, made, folder, target, full_disk):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    full_disk(Path, "replace")
    with pytest.raises(ModelError, match="cannot be written .*No space left"):
        kind.save(made, folder, target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_loaded_heads_draft_a_tree_of_kept_ids_and_tokens_of_the_prompt(name, kind, folder, target, dtype):
    target = target.to(dtype)
    drafter = kind.load(folder, target, dtype=dtype)
    assert (drafter.paths, drafter.feature_layers, drafter.methods) == (PATHS, (4,), (name,))
    known = features(target, TEXT, [4])[:-1]
    drafter.prefill(TEXT, schedule=tree_schedule(name), capacity=32, features_TE=known)
    window, _ = run(drafter.rollout())
    assert len(window.tokens) == len(PATHS)
    assert set(window.tokens) <= {*KEPT.tolist(), *TEXT}


@pytest.mark.parametrize(("name", "method", "layers"), [("eagle1", "eagle2", (4,)), ("eagle3", "eagle3", LAYERS)])
def test_an_eagle_drafter_names_the_layers_it_reads_and_its_method(kind, folder, target, method, layers):
    drafter = kind.load(folder, target, dtype=torch.bfloat16)
    assert (drafter.methods, drafter.feature_layers, drafter.raw_features) == ((method,), layers, False)


@pytest.mark.parametrize("name", ["medusa"])
def test_a_target_with_rows_of_zeros_in_its_embedding_takes_its_own_heads(kind, target, tmp_path):
    """Those of padding, among them the first and the last, which are asked for."""
    with torch.no_grad():
        target.embedding.weight[[0, -1]] = 0
    kind.save(kind.make(target), tmp_path / "own", target)
    kind.load(tmp_path / "own", target, dtype=torch.float32)


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle1", "eagle3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_a_head_drafted_for_nothing_changes_no_later_draft(kind, folder, target, dtype, monkeypatch):
    """A GPU is warmed up once for a schedule, before its sequences; cores are not."""
    drafter, warmed = kind.load(folder, target.to(dtype), dtype=dtype), []
    schedule = tree_schedule(drafter.methods[0], depth=3, top_k=2 * isinstance(drafter, EagleDrafter))
    known = features(target, TEXT, drafter.feature_layers)[:-1]

    def drafted():
        drafter.prepare(schedule, num_prompt=len(TEXT), capacity=32)
        drafter.prefill(TEXT, schedule=schedule, capacity=32, features_TE=known)
        return run(drafter.rollout())[0]

    expected = drafted()
    drafter.warm_up(schedule)
    assert drafted() == expected
    monkeypatch.setattr(type(drafter), "warm_up", lambda _, own: warmed.append(own))
    drafted()
    assert warmed == []
    drafter.device = torch.device("cuda:0")
    drafter.prepare(schedule, num_prompt=len(TEXT), capacity=32)
    drafter.prepare(schedule, num_prompt=len(TEXT), capacity=32)
    assert warmed == [schedule]


@pytest.mark.parametrize("name", ["streams"])
def test_loaded_streams_draft_in_the_type_of_their_target(kind, folder, target):
    loaded = kind.load(folder, target, dtype=torch.bfloat16)
    cache = KVCache(target.config, 8, dtype=torch.bfloat16)
    cache.set_length(2)
    window = loaded.draft(torch.ones(1, 16, dtype=torch.bfloat16), cache, loaded.paths)
    assert loaded.paths == STREAM_PATHS
    assert len(window.tokens) == len(STREAM_PATHS)
    assert set(window.tokens) <= set(KEPT.tolist())


@pytest.mark.parametrize("name", ["draft"])
def test_a_loaded_draft_computes_nearly_what_the_saved_one_does(kind, made, folder, target):
    loaded = kind.load(folder, target, dtype=torch.float32)
    assert loaded.config == made.config
    given = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    expected, found = (draft_states(model, [5, 9, 2, 40, 33], given) for model in (made, loaded))
    assert torch.allclose(expected, found, atol=0.15)
