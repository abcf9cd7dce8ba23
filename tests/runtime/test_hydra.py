"""The reference runs the prefix layer over the whole text for every node, and one head on one row."""

import pytest
import torch
from torch.nn import functional as F

from decoding.errors import LaneError, ModelError
from decoding.messages import NO_WINDOW
from decoding.tree_shape import cut, level_rows
from runtime.decoder import causal_mask, rms_norm
from runtime.hydra_drafter import HydraDrafter
from runtime.hydra_model import HydraConfig
from runtime.static_tree import MOST_RANKS
from tests.runtime.plain import features
from tests.tiny_heads import KEPT, PATHS, nodes, places_by_drafting, run, tiny_hydra, tree_schedule
from tests.tiny_models import tiny_target

TEXT = [3, 17, 42, 8, 30, 5, 12, 44, 20, 6, 58]
LAYERS = 4


@pytest.fixture
def target():
    return tiny_target()


@pytest.fixture
def heads(target):
    return tiny_hydra(target)


@pytest.fixture
def drafter(heads):
    return HydraDrafter(heads, PATHS, num_layers=LAYERS)


def block_by_hand(block, x):
    return x + block.down(F.silu(block.up(rms_norm(x, block.norm, 1e-5))))


def best_by_hand(heads, target, text, drafted):
    """Target ids behind `text` and the drafted tokens, best first; the state is that before the text's last token."""
    known = features(target, text[:-1], [LAYERS]) * target.final_norm
    prefix = heads.read_prefix(
        known[None], positions=torch.arange(len(known)), mask=causal_mask(len(known), torch.float32)
    )
    x = prefix[0, -1]
    tokens = [text[-1], *drafted]
    for distance, token in enumerate(reversed(tokens)):
        x = x + heads.by_distance[distance](rms_norm(target.embedding.weight[token], torch.ones(16), 1e-5))
    x = block_by_hand(heads.own[len(tokens) - 1], x)
    for block in heads.shared:
        x = block_by_hand(block, x)
    order = (target.head.weight[KEPT] @ x).argsort(descending=True, stable=True)
    return KEPT[order].tolist()


def tree_by_hand(heads, target, text, paths):
    drafted = {(): ()}
    for path in paths:
        before = drafted[path[:-1]]
        drafted[path] = (*before, best_by_hand(heads, target, text, before)[path[-1]])
    return [drafted[path] for path in paths]


def draft_at(drafter, target, text, schedule):
    drafter.prefill(text, schedule=schedule, capacity=64, features_TE=features(target, text, [LAYERS])[: len(text) - 1])
    return run(drafter.rollout())[0]


def test_every_node_is_the_candidate_of_its_rank_behind_the_nodes_before_it(drafter, heads, target) -> None:
    window = draft_at(drafter, target, TEXT[:6], tree_schedule("hydra"))
    assert nodes(window) == tree_by_hand(heads, target, TEXT[:6], PATHS)


def test_a_schedule_takes_the_beginning_of_the_tree_without_what_is_too_deep(drafter, heads, target) -> None:
    window = draft_at(drafter, target, TEXT[:6], tree_schedule("hydra", size=6, depth=2))
    assert nodes(window) == tree_by_hand(heads, target, TEXT[:6], cut(PATHS, 6, 2))


def test_a_tree_behind_committed_tokens_is_that_of_the_whole_text(drafter, target) -> None:
    schedule = tree_schedule("hydra")
    draft_at(drafter, target, TEXT[:4], schedule)
    known = features(target, TEXT, [LAYERS])
    for before, now in ((4, 7), (7, 8), (8, 10)):
        window, rows = run(drafter.rollout(TEXT[before:now], known[before - 1 : now - 1]))
        fresh = HydraDrafter(drafter.model, PATHS, num_layers=LAYERS)
        assert window == draft_at(fresh, target, TEXT[:now], schedule)
        assert rows == [now - before, *level_rows(PATHS)[1:]]


def test_the_first_step_reads_what_was_committed_and_each_further_one_a_level(drafter, target) -> None:
    draft_at(drafter, target, TEXT[:5], tree_schedule("hydra"))
    assert run(drafter.rollout())[1] == [1, 2, 2, 1]


def test_behind_a_prompt_of_one_token_nothing_can_be_drafted_before_the_first_verdict(drafter, target) -> None:
    schedule = tree_schedule("hydra")
    assert draft_at(drafter, target, TEXT[:1], schedule) == NO_WINDOW
    window, _ = run(drafter.rollout(TEXT[1:2], features(target, TEXT[:1], [LAYERS])))
    assert window == draft_at(drafter, target, TEXT[:2], schedule)


def test_a_sequence_without_features_is_refused(drafter) -> None:
    with pytest.raises(LaneError, match="without the target's features"):
        drafter.prefill(TEXT, schedule=tree_schedule("hydra"), capacity=64)


def test_it_reads_the_last_layer_at_unit_scale_and_serves_hydra_alone(drafter) -> None:
    assert (drafter.feature_layers, drafter.raw_features, drafter.methods) == ((LAYERS,), False, ("hydra",))


@pytest.mark.parametrize("start", [1, 2, 6])
@pytest.mark.parametrize("depth", [2, 4])
def test_ranks_along_a_text_are_the_places_of_its_tokens_in_drafted_trees(drafter, target, start, depth) -> None:
    schedule = tree_schedule("hydra", size=64, depth=depth)
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
        drafted = nodes(draft_at(drafter, target, text, tree_schedule("hydra")))
        text += drafted[(5 * len(text)) % len(drafted)]
    return text


def test_ranks_go_no_further_than_a_tree_may(drafter, heads, target) -> None:
    known = features(target, TEXT, [LAYERS])
    ranks = drafter.level_ranks(TEXT, start=4, features_TE=known)
    for place in range(4, len(TEXT)):
        ranked = best_by_hand(heads, target, TEXT[:place], [])[:MOST_RANKS]
        expected = ranked.index(TEXT[place]) if TEXT[place] in ranked else -1
        assert ranks[place - 4, 0] == expected


def test_a_text_of_one_token_behind_one_has_no_ranks(drafter) -> None:
    assert drafter.level_ranks([5, 6], start=1, features_TE=torch.zeros(0, 16)).tolist() == [[-1] * 4]


def test_a_measured_step_leaves_a_drafter_that_drafts_as_before(drafter, target) -> None:
    schedule = tree_schedule("hydra")
    before = draft_at(drafter, target, TEXT, schedule)
    for rows, context in ((1, 20), (3, 50)):  # in the end further than any text before
        drafter.measure_step(rows, context)()
    assert draft_at(drafter, target, TEXT, schedule) == before


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ModelError, match="at least 1"):
        HydraConfig(num_heads=2, prefix_width=4, head_width=4, shared_widths=(4, 0), vocab_size=8)
