"""Medusa and Hydra heads learn and are judged alike; the reference computes one head at one position at a time."""

from typing import Any, NamedTuple

import pytest
import torch

from decoding.tree_shape import parents_of
from runtime.drafters.hydra import load_hydra
from runtime.drafters.medusa import load_medusa
from runtime.models.decoder import causal_mask
from tests.training.conftest import assert_learns
from training.recipe import HydraRecipe, MedusaRecipe, Optimisation
from training.tasks.heads import HydraTask, MedusaTask, initial_hydra

KEPT = torch.arange(0, 61, 2)
_COMMON = {
    "num_heads": 3,
    "num_nodes": 12,
    "tree_sizes": (12, 4),
    "vocab_size": len(KEPT),
    "num_held_out": 4,
    "optimisation": Optimisation(num_tokens=50),
}
MEDUSA_RECIPE = MedusaRecipe(**_COMMON, num_blocks=2)
HYDRA_RECIPE = HydraRecipe(**_COMMON, prefix_width=6, head_width=8, shared_widths=(10,))


def medusa_task(target, states):
    return MedusaTask(MEDUSA_RECIPE, KEPT, states)


def hydra_task(target, states):
    return HydraTask(HYDRA_RECIPE, KEPT, states)


def predicting_positions(states, index, num_heads):
    """Positions of a conversation whose next token belongs to the answer and that have `num_heads` before them."""
    row = states.conversations[index]
    return [at for at in range(len(row.ids) - 1) if at + 1 >= len(row.prompt) and at >= num_heads]


def pairs_by_hand(task, batch, head):
    """Logits of a head and of the target for the same token, pair by pair."""
    state_of = medusa_state if isinstance(task, MedusaTask) else hydra_state
    rows = task.states.target.lm_head.weight[KEPT].to(torch.bfloat16)
    for index in batch:
        stored = task.states.rows(4, index)
        for position in predicting_positions(task.states, index, 3):
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                x = state_of(task, index, position, head)
            yield (x.to(torch.bfloat16) @ rows.T).float(), (stored[position] @ rows.T).float()


def medusa_state(task, index, position, head):
    stored = task.states.rows(4, index)
    return task.module.heads[head - 1](stored[position - head].float())


def hydra_state(task, index, position, head):
    model, last = task.module, position - head
    ids = task.states.conversations[index].ids
    prefix = model.read_prefix(
        task.states.rows(4, index)[None, : last + 1].float(),
        positions=torch.arange(last + 1),
        mask=causal_mask(last + 1, torch.bfloat16),
    )[0, -1:]
    between = [model.embed(torch.tensor([ids[at]])) for at in range(last + 1, position + 1)]
    return model(prefix, between[::-1])[0]


class Kind(NamedTuple):
    name: str
    make: Any
    load: Any
    weights: tuple[float, ...]


KINDS = [Kind("medusa", medusa_task, load_medusa, (1, 0.8, 0.64)), Kind("hydra", hydra_task, load_hydra, (1, 1, 1))]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture
def task(kind, target, states):
    return kind.make(target, states)


def shake(task):
    torch.manual_seed(1)
    for parameter in task.module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)


def test_the_loss_is_the_weighted_mean_of_the_cross_entropy_of_the_heads(kind, task):
    shake(task)
    batch, total = [2, 5, 7], 0.0
    for head, weight in enumerate(kind.weights, 1):
        losses = [
            -float((teacher.softmax(-1) * student.log_softmax(-1)).sum())
            for student, teacher in pairs_by_hand(task, batch, head)
        ]
        total += weight * sum(losses) / len(losses)
    loss, num_tokens = task.loss(batch, torch.Generator())
    assert float(loss.detach()) == pytest.approx(total / sum(kind.weights), rel=0.03)
    assert num_tokens == sum(len(predicting_positions(task.states, index, 3)) for index in batch)


def test_agreement_is_the_share_of_tokens_that_a_head_ranks_among_its_best(task):
    shake(task)
    figures = task.evaluate()
    for head in (1, 2, 3):
        pairs = list(pairs_by_hand(task, range(10, 14), head))
        for top_k in (1, 3):
            hits = sum(int(teacher.argmax()) in student.topk(top_k).indices for student, teacher in pairs)
            assert figures[f"agreement_head{head}_top{top_k}"] == pytest.approx(hits / len(pairs), abs=0.06)


def test_learning_lowers_the_loss_and_leaves_the_target_alone(task, target):
    weights = task.module.parameters()
    assert_learns(task, weights, frozen=target, batch=list(range(10)), num_steps=40, rate=1e-2, share=0.8)


def test_the_run_ends_with_heads_and_a_tree_that_load_and_with_rounds_for_every_size(kind, task, target, tmp_path):
    shake(task)
    seen = []
    judgement = task.finish(
        tmp_path / "heads", target_name="tiny", metadata={}, progress=lambda done, total: seen.append((done, total))
    )
    drafter = kind.load(tmp_path / "heads", target, dtype=torch.float32)
    assert len(drafter.paths) == 12
    parents_of(drafter.paths)
    greedy = [row for row in task.states.conversations[10:] if row.temperature == 0]
    assert [(row.tree_size, row.num_tokens, row.with_features) for row in judgement.acceptance] == [
        (12, 3, True),
        (4, 3, True),
        (0, 3, True),
    ]
    committed = {round(one.mean_acceptance_length * one.num_rounds) for one in judgement.acceptance}
    assert committed == {sum(len(row.answer) for row in greedy)}
    big, small, _ = (row.mean_acceptance_length for row in judgement.acceptance)
    assert big >= small >= 1
    assert seen == [(done, 10 + len(greedy)) for done in range(10 + len(greedy))]


def test_every_hydra_head_starts_as_the_targets_own_output_head(target, states):
    task = hydra_task(target, states)
    for head in (1, 2, 3):
        stored = [task.states.rows(4, 0)[at - head] for at in predicting_positions(task.states, 0, 3)]
        rows = task.states.target.lm_head.weight[KEPT].to(torch.bfloat16)
        found = [student for student, _ in pairs_by_hand(task, [0], head)]
        assert torch.equal(torch.stack(found), (torch.stack(stored) @ rows.T).float())


def test_the_prefix_layer_starts_as_the_targets_last_with_its_strongest_neurons(target):
    prefix, source = initial_hydra(HYDRA_RECIPE, target, KEPT).prefix, target.layers[-1]
    assert torch.equal(prefix.qkv.weight, source.qkv.weight)
    strength = [
        float(
            source.gate_up.weight[at].norm() * source.gate_up.weight[24 + at].norm() * source.down.weight[:, at].norm()
        )
        for at in range(24)
    ]
    kept = sorted(sorted(range(24), key=lambda at: -strength[at])[:6])
    assert torch.equal(prefix.gate_up.weight[:6], source.gate_up.weight[kept])
    assert torch.equal(prefix.gate_up.weight[6:], source.gate_up.weight[[24 + at for at in kept]])
    assert not prefix.out.weight.any(), "what attention adds starts at zero"
    assert not prefix.down.weight.any(), "what the MLP adds starts at zero"


def test_the_same_seed_starts_with_the_same_hydra_heads(target):
    first, again = (initial_hydra(HYDRA_RECIPE, target, KEPT).state_dict() for _ in range(2))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())


def test_only_the_medusa_heads_are_trained(target, states):
    names = {name.split(".")[2] for name, _ in medusa_task(target, states).module.named_parameters()}
    assert names == {"blocks", "projection"}
