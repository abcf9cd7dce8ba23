"""What is loaded drafts."""

import pytest
import torch

from runtime.models.decoder import causal_mask
from runtime.models.kv_cache import KVCache
from tests.runtime.drafters.folders.kinds import LAYERS, STREAM_PATHS
from tests.runtime.plain import features
from tests.tiny_heads import KEPT, PATHS, TEXT, run, tree_schedule


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
    ids = torch.tensor([[5, 9, 2, 40, 33]])
    given = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    expected, found = (
        model(ids, positions=torch.arange(5), mask=causal_mask(5, torch.float32), features_BTE=given)
        for model in (made, loaded)
    )
    assert torch.allclose(expected, found, atol=0.15)
