"""A model on several ranks says what it says on one; float32, so that sums in another order differ in last bits only.

What is compared bit for bit: ranks with each other, rows alone with rows in company, and a group of one with no group.
What is compared to a tolerance: logits of several ranks with those of one, whose sums are not cut in parts.
"""

import json
from pathlib import Path

import pytest
import torch

from runtime.backends.eager import EagerBackend
from runtime.backends.self_test import is_row_invariant
from runtime.models.decoder import causal_mask, load_decoder
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import load_sharded_decoder
from tests.runtime.parallel.ranks import on_ranks
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import OPT, tiny_target

TEXT = [5, 17, 3, 44, 8, 60, 0, 2, 31]
MODELS = {
    "two key/value heads": {},
    "three key/value heads": {"num_heads": 6, "num_kv_heads": 3},
    "one key/value head": {"num_kv_heads": 1},
    "a head of its own": {"tie_embeddings": False},
    "biases": {"architecture": "Qwen2ForCausalLM", "attention_bias": True},
    "biases of sums": OPT,
    "norms of queries and keys": {"architecture": "Qwen3ForCausalLM", "qk_norm": True},
}


def logits_of(decoder):
    x = decoder.embedding(torch.tensor([TEXT]))
    positions, mask = torch.arange(len(TEXT)), causal_mask(len(TEXT), x.dtype)
    return decoder.logits(decoder.run_layers(x, 0, decoder.config.num_layers, positions=positions, mask=mask))[0]


def report(group, *folders):
    """What a rank finds of every model."""
    found = []
    for folder in folders:
        decoder = load_sharded_decoder(Path(folder), group, dtype=torch.float32)
        found.append(
            {
                "logits": logits_of(decoder).tolist(),
                "is_row_invariant": is_row_invariant(EagerBackend(decoder)),
                "bytes": sum(weight.nbytes for weight in decoder.layers.parameters()),
            }
        )
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One of every kind of model, and the first one's shape with random weights."""
    root = tmp_path_factory.mktemp("models")
    saved = [save_target(tiny_target(**changes), root / str(place)) for place, changes in enumerate(MODELS.values())]
    shape = root / "shape"
    shape.mkdir()
    config = json.loads((saved[0] / "config.json").read_text())
    (shape / "config.json").write_text(json.dumps(config | {"mirrorsd_random_weights": 3}))
    return [*saved, shape]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, folders, tmp_path_factory):
    """Folders, and reports of all ranks; three ranks take models that can be split so."""
    usable = folders if request.param == 2 else [folders[1]]
    return usable, on_ranks(report, tmp_path_factory.mktemp("ranks"), request.param, *usable)


def test_logits_are_those_of_one_rank_but_for_the_order_of_sums_and_the_same_bits_on_all(ranks):
    usable, reports = ranks
    for place, folder in enumerate(usable):
        whole = logits_of(load_decoder(folder, dtype=torch.float32))
        torch.testing.assert_close(torch.tensor(reports[0][place]["logits"]), whole, rtol=1e-4, atol=1e-4)
        assert all(found[place]["logits"] == reports[0][place]["logits"] for found in reports)


def test_a_rows_bits_do_not_depend_on_its_company(ranks):
    """So speculation by a group writes what the same group writes by plain decoding, to the last bit."""
    _, reports = ranks
    assert all(found["is_row_invariant"] for rank in reports for found in rank)


def test_each_rank_holds_its_share_of_the_layers(ranks):
    usable, reports = ranks
    for place, folder in enumerate(usable):
        layers = load_decoder(folder, dtype=torch.float32).layers
        whole = sum(weight.nbytes for weight in layers.parameters())
        held = [rank[place]["bytes"] for rank in reports]
        assert all(size < 0.75 * whole for size in held)
        # norms are on every rank, and one key/value head may be
        assert whole <= sum(held) < 1.3 * whole


def test_a_group_of_one_is_no_group(folders):
    for folder in folders:
        alone = load_sharded_decoder(folder, Group.alone(), dtype=torch.float32)
        assert torch.equal(logits_of(alone), logits_of(load_decoder(folder, dtype=torch.float32)))
