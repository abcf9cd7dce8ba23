"""The reference has no cache, no masks and no numbered nodes: every path is fed anew, row by row."""

import pytest
import torch

from decoding.schedule import Schedule
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.wire.measurement import Measurement
from tests.runtime.plain import features as target_features
from tests.tiny_eagle import KEPT, plain_entered, plain_features, plain_log_probs, tiny_eagle1, tiny_eagle3
from tests.tiny_heads import nodes, run, said_after
from tests.tiny_models import tiny_target

DEPTH, TOP_K = 3, 3
TEXT = [5, 9, 2, 40, 33, 7, 18, 0, 26, 11, 4, 60]
LAYERS = {"eagle2": (4,), "eagle3": (1, 2, 3)}


@pytest.fixture(scope="module", params=["eagle2", "eagle3"])
def method(request):
    return request.param


@pytest.fixture
def drafter(target, method):
    head = tiny_eagle1(target) if method == "eagle2" else tiny_eagle3(target)
    return EagleDrafter(head, method=method, feature_layers=LAYERS[method])


def schedule(method, size=12):
    return Schedule(
        method=method, target_lane="t", draft_lane="t", num_speculative_tokens=DEPTH, tree_size=size, tree_top_k=TOP_K
    )


def plain_order(head, committed, features_TE):
    """All nodes of the tree after a text as paths of tokens, the best first."""
    entered = plain_entered(head, features_TE[: len(committed) - 1])

    def children(path):
        fed = entered
        for length in range(len(path)):
            done = plain_features(head, [*committed[1:], *path[:length]], fed)
            fed = torch.cat([fed, done[-1:]])
        log_probs = plain_log_probs(head, plain_features(head, [*committed[1:], *path], fed)[-1])
        best = log_probs.argsort(descending=True, stable=True)[:TOP_K]
        return [((*path, int(KEPT[index])), float(log_probs[index])) for index in best]

    pool, level = [], [((), 0.0)]
    for _ in range(DEPTH):
        made = [(path, above + value) for above_path, above in level for path, value in children(above_path)]
        pool += made
        level = sorted(made, key=lambda item: -item[1])[:TOP_K]
    return [path for path, _ in sorted(pool, key=lambda item: (-item[1], len(item[0])))]


def test_trees_are_those_of_the_head_on_the_targets_features_round_after_round(target, method, drafter):
    features = target_features(target, TEXT, LAYERS[method])
    prompt = TEXT[:4]
    drafter.prefill(prompt, schedule=schedule(method), capacity=20, features_TE=features[:3])
    window, rows = run(drafter.rollout())
    assert rows == [1, TOP_K, TOP_K]
    assert nodes(window) == plain_order(drafter.head, prompt, features)[:12]
    length = 4
    for count in (1, 3, 2):
        committed = TEXT[length : length + count]
        window, rows = run(drafter.rollout(committed, features[length - 1 : length + count - 1]))
        length += count
        assert rows == [count, TOP_K, TOP_K]
        assert nodes(window) == plain_order(drafter.head, TEXT[:length], features)[:12]


def test_tokens_of_the_prompt_may_be_drafted_and_those_of_the_answer_may_not(target, method, drafter):
    """In real runs and in records alike."""
    head = drafter.head
    head.share(target, KEPT)
    text = [3, 17, 42, 8, 30, 5]
    known = target_features(target, text, LAYERS[method])
    drafter.prefill(text, schedule=schedule(method), capacity=32, features_TE=known[:5])
    assert head.output.ids.tolist() == said_after(text)
    drafter.ranks_along(text, start=2, features_TE=known, shapes=[(DEPTH, TOP_K)])
    assert head.output.ids.tolist() == said_after(text[:2])
    ids, _ = drafter.rank(torch.randn(1, head.config.hidden_size), 40)
    assert set(ids[0]) == set(said_after(text[:2]))


def test_a_prompt_of_one_token_has_no_feature_before_it(target, method, drafter):
    features = target_features(target, TEXT, LAYERS[method])
    drafter.prefill(TEXT[:1], schedule=schedule(method), capacity=20, features_TE=features[:0])
    window = run(drafter.rollout())[0]
    zero = plain_entered(drafter.head, torch.zeros_like(features[:1]))
    state = plain_features(drafter.head, TEXT[:1], zero, first_position=0)
    best = plain_log_probs(drafter.head, state[-1]).argmax()
    assert window.tokens[0] == KEPT[best]
    [ranks] = drafter.ranks_along(TEXT[:4], start=1, features_TE=features, shapes=[(DEPTH, TOP_K)])
    again = EagleDrafter(drafter.head, method=method, feature_layers=LAYERS[method])
    again.prefill(TEXT[:1], schedule=schedule(method), capacity=20, features_TE=features[:0])
    run(again.rollout())
    path = nodes(run(again.rollout(TEXT[1:2], features[:1]))[0])
    found = [path.index(tuple(TEXT[2 : 3 + d])) if tuple(TEXT[2 : 3 + d]) in path else -1 for d in range(2)]
    assert [rank if rank < 12 else -1 for rank in ranks[1, :2].tolist()] == found


def test_places_along_a_text_are_those_in_the_trees_that_rollouts_draft(target, method, drafter):
    # a text made of paths of the head's own trees, likely ones and unlikely ones
    head, start = drafter.head, 3
    text = TEXT[:start]
    for choice in (0, -1):
        order = plain_order(head, text, target_features(target, text, LAYERS[method]))
        text += [path for path in order if len(path) == DEPTH][choice]
    text.append(59)
    features = target_features(target, text, LAYERS[method])
    [ranks] = drafter.ranks_along(text, start=start, features_TE=features[:-2], shapes=[(DEPTH, TOP_K)])
    assert ranks.shape == (7, DEPTH)
    assert (ranks[[0, 3]] >= 0).all()
    for place in range(7):
        order = plain_order(head, text[: start + place], features)
        following = text[start + place :]
        expected = []
        for depth in range(1, DEPTH + 1):
            path = tuple(following[:depth])
            expected.append(order.index(path) if len(path) == depth and path in order else -1)
        assert ranks[place].tolist() == expected


def test_trees_of_several_shapes_are_those_of_each_shape_alone(target, method, drafter):
    """Also past a block of keys: they share the slots after their prefix."""
    generator = torch.Generator().manual_seed(3)
    text = [*torch.randint(61, (50,), generator=generator).tolist(), *TEXT, *TEXT]
    features = target_features(target, text, LAYERS[method])
    shapes = [(2, 4), (3, 4), (5, 4), (4, 8)]

    def ranks_along(*shapes):
        return drafter.ranks_along(text, start=45, features_TE=features, shapes=shapes)

    together = ranks_along(*shapes)
    for shape, ranks in zip(shapes, together, strict=True):
        assert (ranks >= 0).any()
        assert ranks.tolist() == ranks_along(shape)[0].tolist()


def test_a_step_is_measured_again_and_again_after_a_made_up_text(drafter):
    step = drafter.timed_step(Measurement(part="head_step", rows=3, context=10))
    step()
    step()
    assert drafter.cache.cursor == 13


def test_the_feature_of_eagle1_is_what_the_targets_output_head_reads():
    target = tiny_target()
    head = tiny_eagle1(target)
    state = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    unit = state / (state.square().mean(-1, keepdim=True) + target.config.norm_eps).sqrt()
    assert torch.allclose(head.output_state(head.input_feature(unit)), target.normalise(state), atol=1e-5)
