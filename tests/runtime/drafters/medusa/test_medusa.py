"""The reference computes one head at a time for one place at a time, with all kept ids sorted."""

import pytest
import torch

from runtime.drafters.medusa import MedusaDrafter, MedusaHead
from tests.runtime.plain import features
from tests.tiny_heads import KEPT, LAYERS, PATHS, TEXT, draft_at, nodes, run, tiny_medusa, tree_schedule


@pytest.fixture
def heads(target):
    return tiny_medusa(target)


@pytest.fixture
def drafter(heads):
    return MedusaDrafter(heads, PATHS, num_layers=LAYERS)


def best_by_hand(heads, target, text):
    """Each head's target ids after `text`, best first: the state is that before the last token."""
    unit = features(target, text[:-1], [LAYERS])[-1]
    ranked = []
    for head in heads.heads:
        x = [float(value) for value in unit * target.final_norm]
        for block in head.blocks:
            z = [float(block.bias[row] + sum(block.weight[row] * torch.tensor(x))) for row in range(16)]
            x = [old + value / (1 + 2.718281828459045**-value) for old, value in zip(x, z, strict=True)]
        projected = [float(sum(head.projection.weight[row] * torch.tensor(x))) for row in range(16)]
        x = torch.tensor([old + more for old, more in zip(x, projected, strict=True)])
        scores = {int(token): float(target.lm_head.weight[token] @ x) for token in KEPT}
        ranked.append(sorted(scores, key=lambda token, scores=scores: -scores[token]))
    return ranked


def test_a_head_starts_as_the_identity():
    x = torch.randn(3, 16)
    assert torch.equal(MedusaHead(16, 2)(x), x)


def test_every_node_is_the_candidate_of_its_rank_on_its_level(drafter, heads, target):
    window = draft_at(drafter, target, TEXT[:6], tree_schedule("medusa"))
    best = best_by_hand(heads, target, TEXT[:6])
    assert nodes(window) == [tuple(best[level][rank] for level, rank in enumerate(path)) for path in PATHS]


def test_the_next_tree_follows_from_the_last_feature_alone(drafter, target):
    schedule = tree_schedule("medusa")
    draft_at(drafter, target, TEXT[:5], schedule)
    assert run(drafter.rollout())[1] == [1]
    seen = features(target, TEXT[:8], [LAYERS])[4:7]
    window, rows = run(drafter.rollout(TEXT[5:8], seen))
    assert rows == [3]
    assert window == draft_at(drafter, target, TEXT[:8], schedule)
