"""The reference runs the prefix layer over the whole text for every node, and one head on one row."""

import pytest
import torch
from torch.nn import functional as F

from decoding.tree_shape import level_rows
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.trees import MOST_RANKS
from runtime.models.decoder import causal_mask, rms_norm
from tests.runtime.plain import features
from tests.tiny_heads import (
    LAYERS,
    PATHS,
    TEXT,
    draft_at,
    nodes,
    propose_the_same_after_every_prompt,
    run,
    tiny_hydra,
    tree_schedule,
)


@pytest.fixture
def heads(target):
    return tiny_hydra(target)


@pytest.fixture
def drafter(heads):
    return HydraDrafter(heads, PATHS, num_layers=LAYERS)


def block_by_hand(block, x):
    return x + block.down(F.silu(block.up(rms_norm(x, block.norm, 1e-5))))


def best_by_hand(heads, target, text, drafted):
    """Target ids after `text` and the drafted tokens, best first; the state is that before the text's last token.

    They are those that the heads may say since they last took a prompt in.
    """
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
    ids = heads.output.ids
    order = (target.lm_head.weight[ids] @ x).argsort(descending=True, stable=True)
    return ids[order].tolist()


def tree_by_hand(heads, target, text, paths):
    drafted = {(): ()}
    for path in paths:
        before = drafted[path[:-1]]
        drafted[path] = (*before, best_by_hand(heads, target, text, before)[path[-1]])
    return [drafted[path] for path in paths]


def test_every_node_is_the_candidate_of_its_rank_after_the_nodes_before_it(drafter, heads, target):
    window = draft_at(drafter, target, TEXT[:6], tree_schedule("hydra"))
    assert nodes(window) == tree_by_hand(heads, target, TEXT[:6], PATHS)


def test_a_tree_after_committed_tokens_is_that_of_the_whole_text(drafter, target):
    propose_the_same_after_every_prompt(drafter.model)
    schedule = tree_schedule("hydra")
    draft_at(drafter, target, TEXT[:4], schedule)
    known = features(target, TEXT, [LAYERS])
    for before, now in ((4, 7), (7, 8), (8, 10)):
        window, rows = run(drafter.rollout(TEXT[before:now], known[before - 1 : now - 1]))
        fresh = HydraDrafter(drafter.model, PATHS, num_layers=LAYERS)
        assert window == draft_at(fresh, target, TEXT[:now], schedule)
        assert rows == [now - before, *level_rows(PATHS)[1:]]


def test_ranks_go_no_further_than_a_tree_may(drafter, heads, target):
    known = features(target, TEXT, [LAYERS])
    ranks = drafter.level_ranks(TEXT, start=4, features_TE=known)
    for place in range(4, len(TEXT)):
        ranked = best_by_hand(heads, target, TEXT[:place], [])[:MOST_RANKS]
        expected = ranked.index(TEXT[place]) if TEXT[place] in ranked else -1
        assert ranks[place - 4, 0] == expected
