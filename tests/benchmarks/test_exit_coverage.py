"""Exit coverage of tiny models, held against reading every position by hand."""

import json
from collections import Counter

import pytest
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_text import target_text
from runtime.backends.eager import EagerBackend
from runtime.models.decoder import causal_mask
from runtime.target.early_exits import ExitHeads, load_exits
from tests.benchmarks.scripts import PAGE, RESULTS, load_script
from tests.runtime.tiny_folders import save_exits_of
from tests.tiny_models import VOCAB_SIZE, tiny_adapters, tiny_target

PROMPT = EncodedPrompt("a", "qa", (5, 17, 3, 44, 8))
KEPT_IDS = torch.arange(0, VOCAB_SIZE, 2)
NAMED_IDS = torch.tensor([*range(0, VOCAB_SIZE, 2), 3, 5, 17])
"""What exits may name: with the tokens of the prompt."""


@pytest.fixture(scope="module")
def script():
    return load_script("exit_coverage")


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def by_hand(target, tokens, layer, adapter, top_k):
    """Positions of the text whose token is among the exit's best, from one uncached pass."""
    ids = [*PROMPT.ids, *tokens[:-1]]
    mask, positions = causal_mask(len(ids), torch.float32), torch.arange(len(ids))
    x = target.run_layers(target.embedding(torch.tensor([ids])), 0, layer, positions=positions, mask=mask)
    logits = target.logits(adapter(x))[0, len(PROMPT.ids) - 1 :, NAMED_IDS]
    best = NAMED_IDS[logits.topk(top_k).indices].tolist()
    return sum(token in row for row, token in zip(best, tokens, strict=True))


@torch.inference_mode()
def test_a_position_is_covered_if_the_next_token_is_among_the_exits_best(script, target):
    exits = ExitHeads(adapters=tiny_adapters(target, (1, 3)), kept_ids=KEPT_IDS)
    found = script.cover(target, exits, PROMPT, max_new_tokens=40)
    tokens = target_text(EagerBackend(target), PROMPT.ids, max_new_tokens=40, layers=()).tokens
    assert (found.category, found.num_positions) == ("qa", len(tokens))
    for layer in (1, 3):
        for top_k in script.TOP_K:
            trained = by_hand(target, tokens, layer, exits.adapters[layer], top_k)
            assert found.hits[layer, "trained", top_k] == trained
            assert found.hits[layer, "untrained", top_k] == by_hand(target, tokens, layer, torch.nn.Identity(), top_k)
    assert len(set(found.hits.values())) > 4  # or this would show little


def test_kinds_of_task_are_told_apart_and_weighed_by_their_positions(script):
    def text(category, num_positions, hits):
        return script.Covered(category, num_positions, Counter({(4, "trained", 1): hits, (4, "untrained", 1): 0}))

    found = script.by_category([text("qa", 10, 5), text("rag", 30, 3), text("qa", 10, 7)])
    assert found["num_positions"] == 50
    assert found["coverage"] == {"4": {"trained": {"1": 0.3}, "untrained": {"1": 0.0}}}
    kinds = found["by_category"]
    assert {name: kind["num_positions"] for name, kind in kinds.items()} == {"qa": 20, "rag": 30}
    assert [kind["coverage"]["4"]["trained"]["1"] for kind in kinds.values()] == [0.6, 0.1]


def test_an_adapter_costs_its_parameters_and_their_bytes(script, target, tmp_path):
    folder = save_exits_of(target, tmp_path / "exits", layers=(2, 3))
    exits = load_exits(folder, target, dtype=torch.bfloat16)
    costs = script.adapter_costs(exits, folder)
    hidden, width = 16, 8
    num_parameters = hidden * hidden + hidden + hidden + 2 * hidden * width
    on_disk = 2 * (hidden * hidden + 2 * hidden) + 2 * hidden * width + 4 * (hidden + width)
    one = {"num_parameters": num_parameters, "num_bytes": 2 * num_parameters, "num_bytes_on_disk": on_disk}
    assert costs == {"2": one, "3": one}


def test_the_page_says_what_an_adapter_costs():
    page = PAGE.read_text(encoding="utf-8")
    for layer, cost in json.loads((RESULTS / "exit-coverage-shipped.json").read_text())["adapters"].items():
        assert f"{cost['num_parameters']:,} parameters" in page, layer
        assert f"{cost['num_bytes']:,} bytes" in page, layer
