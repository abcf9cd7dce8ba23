"""Small synthetic checkpoints under their authors' names."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from decoding.errors import ModelError, ModelFormatError
from decoding.tree_shape import parents_of
from runtime.drafters.medusa import default_tree, load_published_medusa
from tests.runtime.plain import features, hidden_states
from tests.tiny_heads import nodes, run, tree_schedule
from tests.tiny_models import VOCAB_SIZE

TEXT = [3, 17, 42, 8, 30, 5, 12]


def checkpoint(*, num_heads=3, num_layers=2, size=16, vocab_size=VOCAB_SIZE, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(size, size, generator=generator) * 0.3
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(size, generator=generator)
        tensors[f"{head}.{num_layers}.weight"] = torch.randn(vocab_size, size, generator=generator)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def write(folder, tensors, *, name="medusa_lm_head.safetensors", prefix="", **config):
    folder.mkdir()
    save_file({prefix + key: tensor for key, tensor in tensors.items()}, folder / name)
    raw = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "somebody/some-model"} | config
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def best_by_hand(target, tensors, text, head, outputs):
    """A head's ids after `text`, best first."""
    x = target.normalise(hidden_states(target, text[:-1], layers=[4])[0, -1])
    for layer in (0, 1):
        x = x + F.silu(tensors[f"{head}.{layer}.linear.weight"] @ x + tensors[f"{head}.{layer}.linear.bias"])
    return (outputs @ x).argsort(descending=True, stable=True).tolist()


def drafted(drafter, target):
    known = features(target, TEXT, [4])[:-1]
    drafter.prefill(TEXT, schedule=tree_schedule("medusa", size=63), capacity=32, features_TE=known)
    return nodes(run(drafter.rollout())[0])


@pytest.mark.parametrize(
    ("name", "prefix"), [("medusa_lm_head.safetensors", ""), ("model.safetensors", "medusa_head.")]
)
def test_heads_draft_with_their_own_output_matrices_over_the_whole_vocabulary(target, tmp_path, name, prefix):
    tensors = checkpoint()
    folder = write(tmp_path / "medusa", tensors, name=name, prefix=prefix)
    drafter = load_published_medusa(folder, target, dtype=torch.float32)
    best = [best_by_hand(target, tensors, TEXT, head, tensors[f"{head}.2.weight"]) for head in range(3)]
    assert drafted(drafter, target) == [
        tuple(best[level][rank] for level, rank in enumerate(path)) for path in drafter.paths
    ]


def test_heads_without_output_matrices_read_out_through_the_targets(target, tmp_path):
    tensors = {name: tensor for name, tensor in checkpoint().items() if "linear" in name}
    drafter = load_published_medusa(write(tmp_path / "medusa", tensors), target, dtype=torch.float32)
    best = best_by_hand(target, tensors, TEXT, 0, target.lm_head.weight)
    assert [node for node in drafted(drafter, target) if len(node) == 1] == [(token,) for token in best[:10]]


def test_weights_of_another_type_are_converted(target, tmp_path):
    folder = write(tmp_path / "medusa", checkpoint(dtype=torch.float16))
    drafter = load_published_medusa(folder, target.to(torch.bfloat16), dtype=torch.bfloat16)
    assert len(drafted(drafter, target)) == 63


def test_the_default_tree_has_as_many_nodes_as_the_papers_and_is_no_deeper_than_there_are_heads():
    tree = default_tree(5)
    parents_of(tree)
    assert Counter(map(len, tree)) == {1: 10, 2: 31, 3: 17, 4: 5}
    assert (max(map(len, default_tree(2))), len(default_tree(2))) == (2, 63)


def without(name):
    return {key: tensor for key, tensor in checkpoint().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lambda: without("2.2.weight"), r"'2.2.weight' is missing"),
        (lambda: checkpoint(num_heads=4), r"unknown tensor '3.0.linear.bias'"),
        (lambda: checkpoint(vocab_size=60), r"0.2.weight has shape \[60, 16\]; .* the target ask for \[61, 16\]"),
        (lambda: checkpoint(size=24), r"0.0.linear.weight has shape \[24, 24\]; .* ask for \[16, 16\]"),
    ],
)
def test_tensors_that_are_missing_unknown_or_wrong_are_named(target, tmp_path, tensors, message):
    with pytest.raises(ModelError, match=message):
        load_published_medusa(write(tmp_path / "medusa", tensors()), target, dtype=torch.float32)


@pytest.mark.parametrize(
    ("config", "message"),
    [({"medusa_num_heads": 0}, "medusa_num_heads: "), ({"medusa_num_layers": "many"}, "medusa_num_layers: ")],
)
def test_a_wrong_config_is_refused_with_its_path(target, tmp_path, config, message):
    folder = write(tmp_path / "medusa", checkpoint(), **config)
    with pytest.raises(ModelFormatError, match=rf"config.json: {message}"):
        load_published_medusa(folder, target, dtype=torch.float32)


def test_files_that_are_missing_damaged_or_pickled_are_refused(target, tmp_path):
    folder = write(tmp_path / "medusa", checkpoint())
    path = folder / "medusa_lm_head.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    for change, message in (
        (lambda: None, r"medusa_lm_head.safetensors: truncated, damaged"),
        (
            lambda: path.rename(folder / "medusa_lm_head.pt"),
            r"medusa_lm_head.pt: pickled weights can run code .* safetensors.torch.save_file",
        ),
        ((folder / "medusa_lm_head.pt").unlink, r"expected medusa_lm_head.safetensors or model.safetensors"),
        ((folder / "config.json").unlink, r"config.json: no such file"),
    ):
        change()
        with pytest.raises(ModelFormatError, match=message):
            load_published_medusa(folder, target, dtype=torch.float32)
