"""The reference computes one head at one position of one conversation at a time."""

import math

import pytest
import torch

from decoding.tree_shape import parents_of
from runtime.medusa_folder import load_medusa
from training.data import read_conversations
from training.lookahead import predicting_positions
from training.medusa import HEAD_DECAY, MedusaTask
from training.recipe import MedusaRecipe, Optimisation
from training.states import TargetStates

KEPT = torch.arange(0, 61, 2)


@pytest.fixture
def states(target, data_path, tmp_path):
    states = TargetStates(tmp_path / "states", target, read_conversations([data_path], vocab_size=61), ())
    states.fill()
    return states


@pytest.fixture
def task(target, states):
    recipe = MedusaRecipe(
        num_heads=3,
        num_blocks=2,
        num_nodes=12,
        tree_sizes=(12, 4),
        vocab_size=len(KEPT),
        num_held_out=4,
        optimisation=Optimisation(num_tokens=50),
    )
    return MedusaTask(recipe, target, KEPT, states)


def shake(task) -> None:
    torch.manual_seed(1)
    for parameter in task.module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)


def rows_by_hand(task, batch, head):
    """Log-probabilities of a head and probabilities of the target for the same token, pair by pair."""
    rows = task.states.target.head.weight[KEPT].to(torch.bfloat16)
    for index in batch:
        stored = task.states.rows(4, index)
        for position in predicting_positions(task.states, index, 3):
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                x = task.module.heads[head - 1](stored[position - head].float())
            student = (x.to(torch.bfloat16) @ rows.T).float()
            teacher = (stored[position] @ rows.T).float()
            yield student, teacher


def loss_by_hand(task, batch):
    total = 0.0
    for head in (1, 2, 3):
        losses = []
        for student, teacher in rows_by_hand(task, batch, head):
            weights, scores = teacher.softmax(-1).tolist(), student.tolist()
            normaliser = math.log(sum(math.exp(score) for score in scores))
            losses.append(-sum(weight * (score - normaliser) for weight, score in zip(weights, scores, strict=True)))
        total += HEAD_DECAY ** (head - 1) * sum(losses) / len(losses)
    return total / (1 + HEAD_DECAY + HEAD_DECAY**2)


def test_the_loss_weighs_the_cross_entropy_of_every_head(task) -> None:
    shake(task)
    loss, num_tokens = task.loss([2, 5, 7], torch.Generator())
    assert float(loss.detach()) == pytest.approx(loss_by_hand(task, [2, 5, 7]), rel=0.03)
    assert num_tokens == sum(len(predicting_positions(task.states, index, 3)) for index in (2, 5, 7))


def test_agreement_is_the_share_of_tokens_that_a_head_ranks_among_its_best(task) -> None:
    shake(task)
    figures = task.evaluate()
    for head in (1, 2, 3):
        pairs = list(rows_by_hand(task, range(10, 14), head))
        for top_k in (1, 3):
            hits = sum(int(teacher.argmax()) in student.topk(top_k).indices for student, teacher in pairs)
            assert figures[f"agreement_head{head}_top{top_k}"] == pytest.approx(hits / len(pairs), abs=0.06)


def test_learning_lowers_the_loss_and_leaves_the_target_alone(task, target) -> None:
    before = {name: weight.clone() for name, weight in target.named_parameters()}
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        loss, _ = task.loss(list(range(10)), torch.Generator())
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(weight, before[name]) for name, weight in target.named_parameters())


def test_only_the_heads_are_trained(task) -> None:
    names = {name.split(".")[2] for name, _ in task.module.named_parameters()}
    assert names == {"blocks", "projection"}


def test_the_run_ends_with_heads_and_a_tree_that_load_and_with_rounds_for_every_size(task, target, tmp_path) -> None:
    shake(task)
    seen = []
    judgement = task.finish(
        tmp_path / "heads", target_name="tiny", metadata={}, progress=lambda done, total: seen.append((done, total))
    )
    drafter = load_medusa(tmp_path / "heads", target, dtype=torch.float32)
    assert len(drafter.paths) == 12
    parents_of(drafter.paths)
    greedy = [row for row in task.states.conversations[10:] if row.temperature == 0]
    assert [(row.tree_size, row.num_tokens, row.with_features) for row in judgement.acceptance] == [
        (12, 3, True),
        (4, 3, True),
        (0, 3, True),
    ]
    assert {row.num_committed for row in judgement.acceptance} == {sum(len(row.answer) for row in greedy)}
    big, small, _ = (row.mean_acceptance_length for row in judgement.acceptance)
    assert big >= small >= 1
    assert seen == [(done, 10 + len(greedy)) for done in range(10 + len(greedy))]
