"""The reference computes one head at one position of one conversation at a time."""

import pytest
import torch

from runtime.decoder import causal_mask
from runtime.hydra_folder import load_hydra
from training.data import read_conversations
from training.hydra import HydraTask, initial_hydra
from training.lookahead import predicting_positions
from training.recipe import HydraRecipe, Optimisation
from training.states import TargetStates

KEPT = torch.arange(0, 61, 2)
RECIPE = HydraRecipe(
    num_heads=3,
    num_nodes=12,
    tree_sizes=(12, 4),
    prefix_width=6,
    head_width=8,
    shared_widths=(10,),
    vocab_size=len(KEPT),
    num_held_out=4,
    optimisation=Optimisation(num_tokens=50),
)


@pytest.fixture
def states(target, data_path, tmp_path):
    states = TargetStates(tmp_path / "states", target, read_conversations([data_path], vocab_size=61), ())
    states.fill()
    return states


@pytest.fixture
def task(target, states):
    return HydraTask(RECIPE, target, KEPT, states)


def shake(task) -> None:
    torch.manual_seed(1)
    for parameter in task.module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)


def pairs_by_hand(task, batch, head):
    """Logits of a head and of the target for the same token, pair by pair."""
    model, rows = task.module, task.states.target.head.weight[KEPT].to(torch.bfloat16)
    for index in batch:
        ids = task.states.conversations[index].ids
        stored = task.states.rows(4, index)
        for position in predicting_positions(task.states, index, 3):
            last = position - head
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                prefix = model.read_prefix(
                    stored[None, : last + 1].float(),
                    positions=torch.arange(last + 1),
                    mask=causal_mask(last + 1, torch.bfloat16),
                )[0, -1:]
                between = [model.embed(torch.tensor([ids[at]])) for at in range(last + 1, position + 1)]
                x = model(prefix, between[::-1])[0]
            yield (x.to(torch.bfloat16) @ rows.T).float(), (stored[position] @ rows.T).float()


def test_the_loss_is_the_mean_cross_entropy_of_the_heads(task) -> None:
    shake(task)
    batch = [2, 5, 7]
    means = []
    for head in (1, 2, 3):
        losses = [
            -float((teacher.softmax(-1) * student.log_softmax(-1)).sum())
            for student, teacher in pairs_by_hand(task, batch, head)
        ]
        means.append(sum(losses) / len(losses))
    loss, num_tokens = task.loss(batch, torch.Generator())
    assert float(loss.detach()) == pytest.approx(sum(means) / 3, rel=0.03)
    assert num_tokens == len(losses)


def test_agreement_is_the_share_of_tokens_that_a_head_ranks_among_its_best(task) -> None:
    shake(task)
    figures = task.evaluate()
    for head in (1, 2, 3):
        pairs = list(pairs_by_hand(task, range(10, 14), head))
        for top_k in (1, 3):
            hits = sum(int(teacher.argmax()) in student.topk(top_k).indices for student, teacher in pairs)
            assert figures[f"agreement_head{head}_top{top_k}"] == pytest.approx(hits / len(pairs), abs=0.06)


def test_every_head_starts_as_the_targets_own_output_head(task) -> None:
    for head in (1, 2, 3):
        stored = [task.states.rows(4, 0)[at - head] for at in predicting_positions(task.states, 0, 3)]
        rows = task.states.target.head.weight[KEPT].to(torch.bfloat16)
        found = [student for student, _ in pairs_by_hand(task, [0], head)]
        assert torch.equal(torch.stack(found), (torch.stack(stored) @ rows.T).float())


def test_the_prefix_layer_starts_as_the_targets_last_with_its_strongest_neurons(target) -> None:
    prefix, source = initial_hydra(RECIPE, target, KEPT).prefix, target.layers[-1]
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


def test_the_same_seed_starts_with_the_same_heads(target) -> None:
    first, again = (initial_hydra(RECIPE, target, KEPT).state_dict() for _ in range(2))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())


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


def test_the_run_ends_with_heads_and_a_tree_that_load_and_with_rounds_for_every_size(task, target, tmp_path) -> None:
    shake(task)
    judgement = task.finish(tmp_path / "heads", target_name="tiny", metadata={}, progress=lambda *_: None)
    drafter = load_hydra(tmp_path / "heads", target, dtype=torch.float32)
    assert len(drafter.paths) == 12
    greedy = [row for row in task.states.conversations[10:] if row.temperature == 0]
    assert [(row.tree_size, row.num_tokens) for row in judgement.acceptance] == [(12, 3), (4, 3), (0, 3)]
    assert {row.num_committed for row in judgement.acceptance} == {sum(len(row.answer) for row in greedy)}
