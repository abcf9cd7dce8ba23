import pytest
import torch
from torch import nn

from runtime.models.decoder import rms_norm
from tests.training.conftest import assert_learns
from training.recipe import ExitRecipe, Optimisation
from training.tasks.heads import COVERAGE_TOP_K, ExitTask

KEPT = torch.arange(0, 61, 2)
STATE_LAYERS = (2, 3)


@pytest.fixture
def task(target, states):
    recipe = ExitRecipe(
        exit_layers=(2, 3), width=8, vocab_size=len(KEPT), num_held_out=4, optimisation=Optimisation(num_tokens=50)
    )
    return ExitTask(recipe, KEPT, states)


def coverage_by_hand(adapters, states, top_k):
    """Layer -> share of held-out positions whose wanted token is among the k best, one position at a time."""
    target = states.target
    norm, head = target.final_norm, target.lm_head.weight.to(torch.bfloat16)
    shares = {}
    for layer, adapter in adapters.items():
        hits = []
        for index in range(10, 14):
            row = states.conversations[index]
            for position in range(len(row.prompt) - 1, len(row.ids) - 1):
                wanted = int((states.rows(4, index)[position] @ head.T).argmax())
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    x = adapter(states.rows(layer, index)[position])
                    logits = (rms_norm(x.float(), norm, 1e-5) @ head[KEPT].T).tolist()
                ranked = sorted(range(len(KEPT)), key=lambda token, row=logits: -row[token])
                hits.append(wanted in [int(KEPT[token]) for token in ranked[:top_k]])
        shares[layer] = sum(hits) / len(hits)
    return shares


def test_an_exit_starts_as_final_norm_and_head_alone(task, states):
    nothing = dict.fromkeys((2, 3), nn.Identity())
    untrained = task.coverage(nothing, KEPT).shares
    figures = task.evaluate()
    assert figures == {f"coverage_layer{n}_top{k}": untrained[n][k] for n in (2, 3) for k in COVERAGE_TOP_K}


@pytest.mark.parametrize("top_k", [1, 4])
def test_coverage_is_the_share_of_positions_whose_token_is_among_the_best(task, states, top_k):
    for adapter in task.adapters.values():
        nn.init.normal_(adapter.down.weight, std=0.3)
    expected = coverage_by_hand(task.adapters, states, top_k)
    found = task.coverage(task.adapters, KEPT).shares
    for layer in (2, 3):
        assert found[layer][top_k] == pytest.approx(expected[layer], abs=0.06)


def test_learning_lowers_the_loss_of_every_exit_and_leaves_the_target_alone(task, target):
    weights = task.module.parameters()
    assert_learns(task, weights, frozen=target, batch=list(range(10)), num_steps=60, rate=1e-2, share=0.9)


def test_trained_and_untrained_coverage_are_reported_apart(task, tmp_path, states):
    for adapter in task.adapters.values():
        nn.init.normal_(adapter.down.weight, std=1.0)
    judgement = task.finish(tmp_path / "exits", target_name="tiny", metadata={}, progress=lambda *_: None)
    untrained = task.coverage(dict.fromkeys((2, 3), nn.Identity()), KEPT)
    assert judgement.untrained_exit_coverage == untrained.shares
    assert judgement.exit_coverage.keys() == {2, 3}
    assert judgement.exit_coverage != judgement.untrained_exit_coverage
