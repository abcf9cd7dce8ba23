"""The reference computes one head at a time for one place at a time, with all kept ids sorted."""

import pytest
import torch

from decoding.errors import LaneError, ModelError
from decoding.messages import NO_WINDOW
from decoding.tree_shape import cut
from runtime.medusa_drafter import MedusaDrafter
from runtime.medusa_model import MedusaConfig, MedusaHead
from tests.runtime.plain import features, target_logits
from tests.tiny_heads import KEPT, PATHS, nodes, places_by_drafting, run, tiny_medusa, tree_schedule
from tests.tiny_models import tiny_target

TEXT = [3, 17, 42, 8, 30, 5, 12, 44, 20, 6, 58]
LAYERS = 4


@pytest.fixture
def target():
    return tiny_target()


@pytest.fixture
def heads(target):
    return tiny_medusa(target)


@pytest.fixture
def drafter(heads):
    return MedusaDrafter(heads, PATHS, num_layers=LAYERS)


def best_by_hand(heads, target, text):
    """Each head's target ids behind `text`, best first: the state is that before the last token."""
    unit = features(target, text[:-1], [LAYERS])[-1]
    ranked = []
    for head in heads.heads:
        x = [float(value) for value in unit * target.final_norm]
        for block in head.blocks:
            z = [float(block.bias[row] + sum(block.weight[row] * torch.tensor(x))) for row in range(16)]
            x = [old + value / (1 + 2.718281828459045**-value) for old, value in zip(x, z, strict=True)]
        projected = [float(sum(head.projection.weight[row] * torch.tensor(x))) for row in range(16)]
        x = torch.tensor([old + more for old, more in zip(x, projected, strict=True)])
        scores = {int(token): float(target.head.weight[token] @ x) for token in KEPT}
        ranked.append(sorted(scores, key=lambda token, scores=scores: -scores[token]))
    return ranked


def draft_at(drafter, target, text, schedule):
    drafter.prefill(text, schedule=schedule, capacity=64, features_TE=features(target, text, [LAYERS])[: len(text) - 1])
    return run(drafter.rollout())[0]


def test_a_head_starts_as_the_identity() -> None:
    x = torch.randn(3, 16)
    assert torch.equal(MedusaHead(16, 2)(x), x)


def test_every_node_is_the_candidate_of_its_rank_on_its_level(drafter, heads, target) -> None:
    window = draft_at(drafter, target, TEXT[:6], tree_schedule("medusa"))
    best = best_by_hand(heads, target, TEXT[:6])
    assert nodes(window) == [tuple(best[level][rank] for level, rank in enumerate(path)) for path in PATHS]


def test_a_schedule_takes_the_beginning_of_the_tree_without_what_is_too_deep(drafter, target) -> None:
    whole = nodes(draft_at(drafter, target, TEXT[:6], tree_schedule("medusa")))
    small = nodes(draft_at(drafter, target, TEXT[:6], tree_schedule("medusa", size=6, depth=2)))
    assert small == [whole[PATHS.index(path)] for path in cut(PATHS, 6, 2)]


def test_the_next_tree_follows_from_the_last_feature_alone(drafter, target) -> None:
    schedule = tree_schedule("medusa")
    draft_at(drafter, target, TEXT[:5], schedule)
    seen = features(target, TEXT[:8], [LAYERS])[4:7]
    window, rows = run(drafter.rollout(TEXT[5:8], seen))
    assert rows == [3]
    assert window == draft_at(drafter, target, TEXT[:8], schedule)


def test_the_first_tree_is_one_step_of_one_row(drafter, target) -> None:
    draft_at(drafter, target, TEXT[:5], tree_schedule("medusa"))
    assert run(drafter.rollout())[1] == [1]


def test_behind_a_prompt_of_one_token_nothing_can_be_drafted_before_the_first_verdict(drafter, target) -> None:
    schedule = tree_schedule("medusa")
    assert draft_at(drafter, target, TEXT[:1], schedule) == NO_WINDOW
    window, _ = run(drafter.rollout(TEXT[1:2], features(target, TEXT[:1], [LAYERS])))
    assert window == draft_at(drafter, target, TEXT[:2], schedule)


def test_a_sequence_without_features_is_refused(drafter) -> None:
    with pytest.raises(LaneError, match="without the target's features"):
        drafter.prefill(TEXT, schedule=tree_schedule("medusa"), capacity=64)


def test_it_reads_the_last_layer_at_unit_scale_and_serves_medusa_alone(drafter) -> None:
    assert (drafter.feature_layers, drafter.raw_features, drafter.methods) == ((LAYERS,), False, ("medusa",))


@pytest.mark.parametrize("start", [1, 2, 6])
@pytest.mark.parametrize("depth", [2, 4])
def test_ranks_along_a_text_are_the_places_of_its_tokens_in_drafted_trees(drafter, target, start, depth) -> None:
    schedule = tree_schedule("medusa", size=64, depth=depth)
    text = greedy_like(drafter, target)
    expected = places_by_drafting(lambda prefix: draft_at(drafter, target, prefix, schedule), text, start, depth)
    known = features(target, text, [LAYERS])[: len(text) - 2]
    found = drafter.ranks_along(text, start=start, features_TE=known, depth=depth)
    assert found.tolist() == expected
    assert (found >= 0).any(axis=0)[:2].all(), "no token of the text stands in any tree: the test says nothing"


def greedy_like(drafter, target):
    """A text that goes along drafted trees now and then."""
    text = TEXT[:3]
    while len(text) < 16:
        drafted = nodes(draft_at(drafter, target, text, tree_schedule("medusa")))
        text += drafted[(5 * len(text)) % len(drafted)]
    return text


def test_a_measured_step_leaves_a_drafter_that_drafts_as_before(drafter, target) -> None:
    schedule = tree_schedule("medusa")
    before = draft_at(drafter, target, TEXT, schedule)
    drafter.measure_step(3, 20)()
    assert draft_at(drafter, target, TEXT, schedule) == before


def test_the_target_itself_would_name_the_first_token_with_untrained_heads(target) -> None:
    heads = tiny_medusa(target)
    for parameter in heads.parameters():
        parameter.zero_()
    drafter = MedusaDrafter(heads, ((0,),), num_layers=LAYERS)
    window = draft_at(drafter, target, TEXT[:4], tree_schedule("medusa", size=1, depth=1))
    logits = target_logits(target, TEXT[:3])[-1]
    assert window.tokens == (int(KEPT[logits[KEPT].argmax()]),)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ModelError, match="at least 1"):
        MedusaConfig(num_heads=0, num_blocks=1, vocab_size=8)
