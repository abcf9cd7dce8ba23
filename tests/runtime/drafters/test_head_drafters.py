"""Laws of drafters with heads that propose a static tree, against one head that is computed for one place at a time."""

import pytest
import torch
from torch.nn import functional as F

from decoding.messages import NO_WINDOW
from decoding.schedule import MAX_TREE
from decoding.tree_shape import MOST_RANKS, cut, level_rows, places_along
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.medusa import MedusaDrafter, MedusaHead
from runtime.models.decoder import causal_mask, rms_norm
from runtime.wire.measurement import Measurement
from tests.runtime.plain import features
from tests.tiny_heads import (
    LAYERS,
    PATHS,
    TEXT,
    draft_at,
    nodes,
    places_by_drafting,
    propose_the_same_after_every_prompt,
    run,
    said_after,
    tiny_hydra,
    tiny_medusa,
    tree_schedule,
)

KINDS = {"medusa": (tiny_medusa, MedusaDrafter), "hydra": (tiny_hydra, HydraDrafter)}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def drafter(kind, target):
    make, drafter_of = KINDS[kind]
    return drafter_of(make(target), PATHS, num_layers=LAYERS)


def medusa_state(heads, target, known, tokens):
    head, x = heads.heads[len(tokens) - 1], known[-1]
    for block in head.blocks:
        z = block.weight @ x + block.bias
        x = x + z / (1 + (-z).exp())
    return x + head.projection.weight @ x


def hydra_state(heads, target, known, tokens):
    """The prefix layer over the whole text, then one head on one row."""
    mask = causal_mask(len(known), torch.float32)
    x = heads.read_prefix(known[None], positions=torch.arange(len(known)), mask=mask)[0, -1]
    for distance, token in enumerate(reversed(tokens)):
        x = x + heads.by_distance[distance](rms_norm(target.embedding.weight[token], torch.ones(16), 1e-5))
    for block in (heads.own[len(tokens) - 1], *heads.shared):
        x = x + block.down(F.silu(block.up(rms_norm(x, block.norm, 1e-5))))
    return x


STATES = {"medusa": medusa_state, "hydra": hydra_state}


def best_by_hand(kind, drafter, target, text, drafted):
    """Target ids after `text` and the drafted tokens, best first; the state is that before the text's last token.

    They are those that the heads may say since they last took a prompt in.
    """
    known = features(target, text[:-1], [LAYERS]) * target.final_norm
    x, ids = STATES[kind](drafter.model, target, known, [text[-1], *drafted]), drafter.model.output.ids
    return ids[(target.lm_head.weight[ids] @ x).argsort(descending=True, stable=True)].tolist()


def test_every_node_is_the_candidate_of_its_rank_after_the_nodes_before_it(kind, drafter, target):
    window = draft_at(drafter, target, TEXT[:6], tree_schedule(kind))
    expected = {(): ()}
    for path in PATHS:
        before = expected[path[:-1]]
        expected[path] = (*before, best_by_hand(kind, drafter, target, TEXT[:6], before)[path[-1]])
    assert nodes(window) == [expected[path] for path in PATHS]


def test_a_tree_after_committed_tokens_is_that_of_the_whole_text(kind, drafter, target):
    propose_the_same_after_every_prompt(drafter.model)
    draft_at(drafter, target, TEXT[:4], tree_schedule(kind))
    known, later_rows = features(target, TEXT, [LAYERS]), level_rows(PATHS)[1:] if kind == "hydra" else ()
    for before, now in ((4, 7), (7, 8), (8, 10)):
        window, rows = run(drafter.rollout(TEXT[before:now], known[before - 1 : now - 1]))
        fresh = KINDS[kind][1](drafter.model, PATHS, num_layers=LAYERS)
        assert window == draft_at(fresh, target, TEXT[:now], tree_schedule(kind))
        assert rows == [now - before, *later_rows]
    if kind == "medusa":
        assert run(drafter.rollout())[1] == [1]


def test_ranks_go_no_further_than_a_tree_may(kind, drafter, target):
    ranks = drafter.level_ranks(TEXT, start=4, features_TE=features(target, TEXT, [LAYERS]))
    for place in range(4, len(TEXT)):
        ranked = best_by_hand(kind, drafter, target, TEXT[:place], [])[:MOST_RANKS]
        assert ranks[place - 4, 0] == (ranked.index(TEXT[place]) if TEXT[place] in ranked else -1)


def test_tokens_of_the_prompt_may_be_drafted_and_those_of_the_answer_may_not(kind, drafter, target):
    """In real runs and in records alike."""
    output = drafter.model.output
    draft_at(drafter, target, TEXT[:6], tree_schedule(kind))
    assert output.ids.tolist() == said_after(TEXT[:6])
    drafter.level_ranks(TEXT, start=2, features_TE=features(target, TEXT, [LAYERS]))
    assert output.ids.tolist() == said_after(TEXT[:2])
    assert torch.equal(output.rows, target.lm_head.weight[output.ids])


def test_a_schedule_takes_the_beginning_of_the_tree_without_what_is_too_deep(kind, drafter, target):
    whole = nodes(draft_at(drafter, target, TEXT[:6], tree_schedule(kind)))
    small = nodes(draft_at(drafter, target, TEXT[:6], tree_schedule(kind, size=6, depth=2)))
    assert small == [whole[PATHS.index(path)] for path in cut(PATHS, 6, 2)]


def test_after_a_prompt_of_one_token_nothing_can_be_drafted_before_the_first_verdict(kind, drafter, target):
    propose_the_same_after_every_prompt(drafter.model)
    schedule = tree_schedule(kind)
    assert draft_at(drafter, target, TEXT[:1], schedule) == NO_WINDOW
    window, _ = run(drafter.rollout(TEXT[1:2], features(target, TEXT[:1], [LAYERS])))
    assert window == draft_at(drafter, target, TEXT[:2], schedule)


@pytest.mark.parametrize("start", [1, 2, 6])
@pytest.mark.parametrize("depth", [2, 4])
def test_ranks_along_a_text_are_the_places_of_its_tokens_in_drafted_trees(kind, drafter, target, start, depth):
    schedule, text = tree_schedule(kind, size=64, depth=depth), TEXT[:3]
    while len(text) < 16:  # goes along drafted trees now and then
        drafted = nodes(draft_at(drafter, target, text, tree_schedule(kind)))
        text = [*text, *drafted[(5 * len(text)) % len(drafted)]]
    expected = places_by_drafting(lambda prefix: draft_at(drafter, target, prefix, schedule), text, start, depth)
    known = features(target, text, [LAYERS])[: len(text) - 2]
    ranks = drafter.level_ranks(text, start=start, features_TE=known)
    found = places_along(ranks, cut(PATHS, MAX_TREE, depth), depth)
    assert found.tolist() == expected
    assert (found >= 0).any(axis=0)[:2].all(), "no token of the text stands in any tree: the test says nothing"


def test_a_text_of_one_token_after_one_has_no_ranks(drafter):
    assert drafter.level_ranks([5, 6], start=1, features_TE=torch.zeros(0, 16)).tolist() == [[-1] * 4]


def test_a_measured_step_leaves_a_drafter_that_drafts_as_before(kind, drafter, target):
    schedule = tree_schedule(kind)
    before = draft_at(drafter, target, TEXT, schedule)
    for rows, context in ((1, 20), (3, 50)):  # in the end further than any text before
        drafter.timed_step(Measurement(part="head_step", rows=rows, context=context))()
    assert draft_at(drafter, target, TEXT, schedule) == before


def test_a_medusa_head_starts_as_the_identity():
    x = torch.randn(3, 16)
    assert torch.equal(MedusaHead(16, 2)(x), x)
