"""Synthetic checkpoints of the published shape; the reference reads the authors' tensors by the authors' names."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from decoding.errors import ModelError
from decoding.schedule import Schedule
from runtime.drafters.eagle.folder import load_published_eagle3
from runtime.models.decoder import rotate
from tests.tiny_heads import run
from tests.tiny_models import VOCAB_SIZE, tiny_target

D, HEADS, KV, H, MLP, KEPT = 16, 2, 1, 8, 20, 30


@pytest.fixture(scope="module")
def target():
    return tiny_target(num_layers=6)


def checkpoint_config(**changes):
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": KEPT,
        "num_hidden_layers": 1,
        "hidden_size": D,
        "intermediate_size": MLP,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": H,
        "max_position_embeddings": 32,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    } | changes


def checkpoint_tensors():
    generator = torch.Generator().manual_seed(0)
    kept = torch.arange(KEPT) * 2 + 1
    t2d = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    t2d[kept] = True
    shapes = {
        "fc.weight": (D, 3 * D),
        "midlayer.input_layernorm.weight": (D,),
        "midlayer.hidden_norm.weight": (D,),
        "midlayer.self_attn.q_proj.weight": (HEADS * H, 2 * D),
        "midlayer.self_attn.k_proj.weight": (KV * H, 2 * D),
        "midlayer.self_attn.v_proj.weight": (KV * H, 2 * D),
        "midlayer.self_attn.o_proj.weight": (D, HEADS * H),
        "midlayer.post_attention_layernorm.weight": (D,),
        "midlayer.mlp.gate_proj.weight": (MLP, D),
        "midlayer.mlp.up_proj.weight": (MLP, D),
        "midlayer.mlp.down_proj.weight": (D, MLP),
        "norm.weight": (D,),
        "lm_head.weight": (KEPT, D),
    }
    tensors = {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}
    return tensors | {"d2t": kept - torch.arange(KEPT), "t2d": t2d}


def write(folder, tensors=None, **config):
    (folder / "config.json").write_text(json.dumps(checkpoint_config(**config)))
    save_file(checkpoint_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def unit(x, weight):
    return x / math.sqrt(float(x.square().mean()) + 1e-5) * weight


def authors_logits(tensors, embedding, rotary, ids, taps):
    """Logits after the last of some rows, after the authors' description."""
    mid = {name.removeprefix("midlayer."): tensor for name, tensor in tensors.items()}
    keys, values, hidden = [], [], None
    for row, (token, tap) in enumerate(zip(ids, taps, strict=True)):
        hidden = tensors["fc.weight"] @ tap
        x = torch.cat([unit(embedding[token], mid["input_layernorm.weight"]), unit(hidden, mid["hidden_norm.weight"])])
        at = rotary(torch.tensor([row + 1]), torch.float32)
        q = rotate((mid["self_attn.q_proj.weight"] @ x).view(1, 1, HEADS, H), *at)[0, 0]
        keys.append(rotate((mid["self_attn.k_proj.weight"] @ x).view(1, 1, KV, H), *at)[0, 0, 0])
        values.append(mid["self_attn.v_proj.weight"] @ x)
        weights = (q @ torch.stack(keys).T / math.sqrt(H)).softmax(-1)
        hidden = hidden + mid["self_attn.o_proj.weight"] @ (weights @ torch.stack(values)).flatten()
        x = unit(hidden, mid["post_attention_layernorm.weight"])
        x = F.silu(mid["mlp.gate_proj.weight"] @ x) * (mid["mlp.up_proj.weight"] @ x)
        hidden = hidden + mid["mlp.down_proj.weight"] @ x
    return tensors["lm_head.weight"] @ unit(hidden, tensors["norm.weight"])


def draft_root(drafter, ids, taps):
    schedule = Schedule(
        method="eagle3", target_lane="t", draft_lane="t", num_speculative_tokens=1, tree_size=4, tree_top_k=4
    )
    drafter.prefill(ids, schedule=schedule, capacity=20, features_TE=taps)
    return run(drafter.rollout())[0].tokens


@pytest.mark.parametrize("own_embedding", [False, True])
def test_its_candidates_are_the_best_of_its_own_logits(tmp_path, own_embedding):
    target = tiny_target(num_layers=8)
    tensors = checkpoint_tensors()
    embedding = target.embedding.weight
    if own_embedding:
        embedding = tensors["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, D)
    drafter = load_published_eagle3(write(tmp_path, tensors), target, dtype=torch.float32)
    assert drafter.raw_features
    assert drafter.methods == ("eagle3",)
    assert drafter.feature_layers == (2, 4, 5)
    ids, taps = [5, 9, 2, 40], torch.randn(3, 3 * D, generator=torch.Generator().manual_seed(1)) * 5
    logits = authors_logits(tensors, embedding, drafter.head.rotary, ids[1:], taps)
    best = logits.argsort(descending=True)[:4]
    assert draft_root(drafter, ids, taps) == tuple((best * 2 + 1).tolist())


def test_layers_are_those_of_the_config_and_positions_reach_as_far_as_the_targets(tmp_path, target):
    folder = write(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 5]})
    drafter = load_published_eagle3(folder, target, dtype=torch.float32)
    assert drafter.feature_layers == (1, 3, 6)
    assert len(drafter.head.rotary.cos_PH) == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 60}, "for a vocabulary of 60; this target has 61"),
        ({"draft_vocab_size": 62}, r"draft_vocab_size is 62; expected 1\.\.61"),
        ({"architectures": ["LlamaForCausalLM"]}, "not that of a published EAGLE-3 head"),
        ({"norm_before_residual": True}, "norm_before_residual: Input should be False"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}}, r"reads layers \[2, 3, 7\]"),
        ({"eagle_config": [1]}, "eagle_config: "),
        ({"hidden_size": "16"}, "hidden_size: Input should be a valid integer"),
        ({"hidden_size": 32}, r"embed_tokens\.weight has shape \[61, 16\]; .* ask for \[61, 32\]"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, target, changes, message):
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}}
    with pytest.raises(ModelError, match=message):
        load_published_eagle3(write(tmp_path, **layers | changes), target, dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("norm.weight"), "the tensor 'norm.weight' is missing"),
        (lambda tensors: tensors.pop("t2d"), "the tensor 't2d' is missing"),
        (lambda tensors: tensors.update({"midlayer.x": torch.ones(1)}), "unknown tensor 'midlayer.x'"),
        (lambda tensors: tensors.update({"fc.weight": torch.ones(D, 2 * D)}), r"fc.weight has shape \[16, 32\]"),
        (lambda tensors: tensors["norm.weight"][3:4].fill_(math.inf), "norm.weight holds numbers that are not finite"),
        (lambda tensors: tensors.update({"d2t": torch.zeros(KEPT)}), "t2d and d2t do not map 30 draft ids"),
        (lambda tensors: tensors["d2t"].add_(1), "t2d and d2t do not map 30 draft ids"),
    ],
)
def test_tensors_that_are_missing_unknown_or_wrong_are_named(tmp_path, target, change, message):
    tensors = checkpoint_tensors()
    change(tensors)
    folder = write(tmp_path, tensors, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 5]})
    with pytest.raises(ModelError, match=message):
        load_published_eagle3(folder, target, dtype=torch.float32)
