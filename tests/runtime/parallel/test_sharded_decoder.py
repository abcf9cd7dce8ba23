"""A model on several ranks says what it says on one; float32, so that sums in another order differ in last bits only.

What is compared bit for bit: ranks with each other, rows alone with rows in company, a group of one with no group, and
the choice of best ids with one from all logits. What is compared to a tolerance: hidden states and logits of several
ranks with those of one, whose sums over heads and hidden units are not cut in parts.
"""

import json
from pathlib import Path

import pytest
import torch

from runtime.backends.eager import EagerBackend
from runtime.backends.self_test import is_row_invariant
from runtime.models.decoder import causal_mask
from runtime.models.ranking import ranked_ids
from runtime.models.weights import load_decoder
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import load_sharded_decoder
from runtime.parallel.sharded_target import sharded_top_k
from tests.runtime.parallel.ranks import on_ranks
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import OPT, VOCAB_SIZE, tiny_target

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
NUM_BEST = 40


def logits_of(decoder):
    x = decoder.embedding(torch.tensor([TEXT]))
    positions, mask = torch.arange(len(TEXT)), causal_mask(len(TEXT), x.dtype)
    return decoder.logits(decoder.run_layers(x, 0, decoder.config.num_layers, positions=positions, mask=mask))[0]


def best_of(decoder):
    head, x = decoder.lm_head, decoder.embedding(torch.tensor([TEXT]))
    logits = head.own_logits(decoder.normalise(x))[0]
    best = sharded_top_k(logits, head.ids, NUM_BEST, decoder.group)
    return decoder.logits(x)[0], best


def report(group, *folders):
    """What a rank finds of every model."""
    found = []
    for folder in folders:
        decoder = load_sharded_decoder(Path(folder), group, dtype=torch.float32)
        logits, best = best_of(decoder)
        found.append(
            {
                "logits": logits_of(decoder).tolist(),
                "is_row_invariant": is_row_invariant(EagerBackend(decoder)),
                "bytes": sum(weight.nbytes for weight in {id(w): w for w in decoder.layers.parameters()}.values()),
                "best": best.ids.tolist(),
                "best_of_all": ranked_ids(logits, NUM_BEST).tolist(),
                "log_probs": best.log_probs.tolist(),
                "log_probs_of_all": logits.log_softmax(-1).gather(-1, best.ids).tolist(),
            }
        )
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return [save_target(tiny_target(**changes), root / str(place)) for place, changes in enumerate(MODELS.values())]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, folders, tmp_path_factory):
    """Reports of all ranks; three ranks take models that can be split so."""
    usable = folders if request.param == 2 else [folders[1]]
    return usable, on_ranks(report, tmp_path_factory.mktemp("ranks"), request.param, *usable)


def test_logits_are_those_of_one_rank_but_for_the_order_of_sums(ranks):
    usable, reports = ranks
    for place, folder in enumerate(usable):
        whole = logits_of(load_decoder(folder, dtype=torch.float32))
        for found in reports:
            torch.testing.assert_close(torch.tensor(found[place]["logits"]), whole, rtol=1e-4, atol=1e-4)


def test_all_ranks_say_the_same_to_the_last_bit(ranks):
    _, (first, *others) = ranks
    for other in others:
        for ours, theirs in zip(first, other, strict=True):
            assert ours["logits"] == theirs["logits"]
            assert ours["best"] == theirs["best"]
            assert ours["log_probs"] == theirs["log_probs"]


def test_a_rows_bits_do_not_depend_on_its_company(ranks):
    """So speculation by a group writes what the same group writes by plain decoding, to the last bit."""
    _, reports = ranks
    assert all(found["is_row_invariant"] for rank in reports for found in rank)


def test_merged_best_ids_are_those_of_all_logits(ranks):
    _, reports = ranks
    for found in (found for rank in reports for found in rank):
        assert found["best"] == found["best_of_all"]
        torch.testing.assert_close(torch.tensor(found["log_probs"]), torch.tensor(found["log_probs_of_all"]))


def test_each_rank_holds_its_share_of_the_layers(ranks):
    usable, reports = ranks
    for place, folder in enumerate(usable):
        layers = load_decoder(folder, dtype=torch.float32).layers
        whole = sum(weight.nbytes for weight in layers.parameters())
        held = [rank[place]["bytes"] for rank in reports]
        assert all(size < 0.75 * whole for size in held)
        # norms are on every rank, and one key/value head may be
        assert whole <= sum(held) < 1.3 * whole


def test_a_model_of_random_weights_is_whole_in_a_group_of_one(folders, tmp_path):
    config = json.loads((folders[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mirrorsd_random_weights": 3}))
    alone = load_sharded_decoder(tmp_path, Group.alone(), dtype=torch.float32)
    assert torch.equal(logits_of(alone), logits_of(load_decoder(tmp_path, dtype=torch.float32)))


def test_a_group_of_one_is_no_group(folders):
    for folder in folders:
        alone = load_sharded_decoder(folder, Group.alone(), dtype=torch.float32)
        assert torch.equal(logits_of(alone), logits_of(load_decoder(folder, dtype=torch.float32)))


def test_of_equal_logits_the_lower_id_goes_first():
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[1, 7] = 1.0
    best = sharded_top_k(logits, torch.arange(VOCAB_SIZE), 3, Group.alone())
    assert best.ids.tolist() == [[0, 1, 2], [7, 0, 1]]


def test_ids_that_are_asked_for_beyond_a_ranks_own_are_filled_up():
    best = sharded_top_k(torch.tensor([[1.0, 2.0]]), torch.tensor([4, 9]), 3, Group.alone())
    assert best.ids.tolist()[0][:2] == [9, 4]
    assert best.log_probs[0, 2] == -torch.inf
