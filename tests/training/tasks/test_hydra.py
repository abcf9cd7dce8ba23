"""How Hydra heads start; what they learn: `test_head_tasks`."""

import torch

from tests.training.tasks.tiny_head_tasks import HYDRA_RECIPE, KEPT, hydra_task, pairs_by_hand
from training.tasks.hydra import initial_hydra
from training.tasks.lookahead import predicting_positions


def test_every_head_starts_as_the_targets_own_output_head(target, states) -> None:
    task = hydra_task(target, states)
    for head in (1, 2, 3):
        stored = [task.states.rows(4, 0)[at - head] for at in predicting_positions(task.states, 0, 3)]
        rows = task.states.target.lm_head.weight[KEPT].to(torch.bfloat16)
        found = [student for student, _ in pairs_by_hand(task, [0], head)]
        assert torch.equal(torch.stack(found), (torch.stack(stored) @ rows.T).float())


def test_the_prefix_layer_starts_as_the_targets_last_with_its_strongest_neurons(target) -> None:
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


def test_the_same_seed_starts_with_the_same_heads(target) -> None:
    first, again = (initial_hydra(HYDRA_RECIPE, target, KEPT).state_dict() for _ in range(2))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
