"""Laws of drafters with heads that propose a static tree, for Medusa and for Hydra; some for EAGLE too."""

import pytest
import torch

from decoding.errors import LaneError
from decoding.messages import NO_WINDOW
from decoding.tree_shape import cut
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.medusa import MedusaDrafter
from runtime.wire.measurement import Measurement
from tests.runtime.plain import features
from tests.tiny_heads import (
    KEPT,
    LAYERS,
    PATHS,
    TEXT,
    draft_at,
    nodes,
    places_by_drafting,
    propose_the_same_after_every_prompt,
    run,
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


def test_tokens_of_the_prompt_may_be_drafted_and_those_of_the_answer_may_not(kind, drafter, target):
    """In real runs and in records alike."""
    output = (drafter.heads if kind == "medusa" else drafter.model).output

    def said_after(prompt):
        return [*KEPT.tolist(), *sorted(set(prompt) - set(KEPT.tolist()))]

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
    propose_the_same_after_every_prompt(drafter.heads if kind == "medusa" else drafter.model)
    schedule = tree_schedule(kind)
    assert draft_at(drafter, target, TEXT[:1], schedule) == NO_WINDOW
    window, _ = run(drafter.rollout(TEXT[1:2], features(target, TEXT[:1], [LAYERS])))
    assert window == draft_at(drafter, target, TEXT[:2], schedule)


def test_a_sequence_without_features_is_refused(kind, drafter):
    with pytest.raises(LaneError, match=f"{kind.capitalize()} heads cannot draft without the target's features"):
        drafter.prefill(TEXT, schedule=tree_schedule(kind), capacity=64)


@pytest.mark.parametrize("start", [1, 2, 6])
@pytest.mark.parametrize("depth", [2, 4])
def test_ranks_along_a_text_are_the_places_of_its_tokens_in_drafted_trees(kind, drafter, target, start, depth):
    schedule = tree_schedule(kind, size=64, depth=depth)
    text = greedy_like(kind, drafter, target)
    expected = places_by_drafting(lambda prefix: draft_at(drafter, target, prefix, schedule), text, start, depth)
    known = features(target, text, [LAYERS])[: len(text) - 2]
    found = drafter.ranks_along(text, start=start, features_TE=known, depth=depth)
    assert found.tolist() == expected
    assert (found >= 0).any(axis=0)[:2].all(), "no token of the text stands in any tree: the test says nothing"


def greedy_like(kind, drafter, target):
    """A text that goes along drafted trees now and then."""
    text = TEXT[:3]
    while len(text) < 16:
        drafted = nodes(draft_at(drafter, target, text, tree_schedule(kind)))
        text += drafted[(5 * len(text)) % len(drafted)]
    return text


def test_a_text_of_one_token_after_one_has_no_ranks(drafter):
    assert drafter.level_ranks([5, 6], start=1, features_TE=torch.zeros(0, 16)).tolist() == [[-1] * 4]


def test_a_measured_step_leaves_a_drafter_that_drafts_as_before(kind, drafter, target):
    schedule = tree_schedule(kind)
    before = draft_at(drafter, target, TEXT, schedule)
    for rows, context in ((1, 20), (3, 50)):  # in the end further than any text before
        drafter.timed_step(Measurement(part="head_step", rows=rows, context=context))()
    assert draft_at(drafter, target, TEXT, schedule) == before
