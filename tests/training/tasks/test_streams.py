"""What streams learn and how they are judged, against one stream of one position at a time."""

import pytest
import torch

from runtime.drafters.streams import StreamTree, load_streams
from tests.runtime.drafters.streams.test_model import streams_of_row
from tests.training.conftest import assert_learns
from training.recipe import Optimisation, StreamRecipe
from training.tasks.stream_tasks import StreamTask, choose_rows

KEPT = torch.arange(0, 61, 2)
STATE_LAYERS = (2,)
EVERY_ROW = 99


def stream_task(target, states, **changes):
    options = {"start_layer": 2, "num_streams": 3, "rank": 2, "rows_per_conversation": EVERY_ROW, "num_held_out": 4}
    recipe = StreamRecipe(
        **options | {"vocab_size": len(KEPT), "tree_sizes": (4, 8), "num_nodes": 8} | changes,
        optimisation=Optimisation(num_tokens=50, conversations_per_step=2),
    )
    return StreamTask(recipe, KEPT, states)


@pytest.fixture
def task(target, states):
    return stream_task(target, states)


def predicting(*spans, width=30):
    """Which positions predict an answer: from the first of each span to the one before its second."""
    mask = torch.zeros(len(spans), width, dtype=torch.bool)
    for row, (first, stop) in zip(mask, spans, strict=True):
        row[first:stop] = True
    return mask


def blur(module):
    torch.manual_seed(7)
    for weight in module.trained.values():
        torch.nn.init.normal_(weight, std=0.2)


def pairs_by_hand(task, index):
    """(stream, its logits, the target's logits) of every position of an answer that has something to guess."""
    target, states = task.target, task.states
    row = states.conversations[index]
    head = target.lm_head.weight[KEPT]
    final = states.rows(4, index).float()
    for position in range(len(row.prompt) - 1, len(row.ids) - 2):
        hidden = streams_of_row(target, task.module, list(row.ids), position)
        for stream in range(1, task.recipe.num_streams + 1):
            if position + stream < len(row.ids) - 1:
                yield stream, head @ hidden[stream - 1], head @ final[position + stream]


def test_the_loss_is_the_weighted_cross_entropy_of_each_stream_to_the_target_that_far_ahead(task):
    blur(task.module)
    losses = {1: [], 2: [], 3: []}
    for index in (0, 5):
        for stream, own, wanted in pairs_by_hand(task, index):
            losses[stream].append(float(-(wanted.softmax(0) * own.log_softmax(0)).sum().detach()))
    means = [sum(values) / len(values) for values in losses.values()]
    expected = (means[0] + 0.8 * means[1] + 0.64 * means[2]) / 2.44
    loss, num_rows = task.loss([0, 5], torch.Generator())
    assert float(loss.detach()) == pytest.approx(expected, rel=0.03)
    assert num_rows == len(losses[1])


def test_agreement_is_the_share_of_held_out_positions_named_by_each_stream(task):
    blur(task.module)
    hits = {(stream, top_k): [] for stream in (1, 2, 3) for top_k in (1, 3, 8)}
    for index in range(10, 14):
        for stream, own, wanted in pairs_by_hand(task, index):
            for top_k in (1, 3, 8):
                hits[stream, top_k].append(int(wanted.argmax()) in own.topk(top_k).indices.tolist())
    found = task.evaluate()
    for (stream, top_k), values in hits.items():
        share = sum(values) / len(values)
        assert found[f"agreement_stream{stream}_top{top_k}"] == pytest.approx(share, abs=0.08)


def test_learning_lowers_the_loss_and_leaves_the_target_alone(task, target):
    weights = list(task.module.parameters())
    assert sum(weight.requires_grad for weight in weights) == len(task.module.trained)
    assert_learns(task, weights, frozen=target, batch=[0, 1, 2, 3], num_steps=30, rate=2e-2, share=0.9)


def test_the_same_seed_starts_with_the_same_streams(task, target, states):
    torch.rand(3)
    again = stream_task(target, states)
    for name, weight in again.module.trained.items():
        assert torch.equal(weight, task.module.trained[name]), name


def test_every_row_of_an_answer_that_looks_at_the_answer_is_taken_where_there_are_few():
    rows = choose_rows(predicting((2, 6), (0, 3), width=7), 99, 2, torch.Generator())
    assert rows.positions.tolist() == [[2, 3, 4], [0, 1, 0]]
    assert rows.ahead[0].tolist() == [[3, 4], [4, 5], [5, 6]]
    assert rows.has_target[0].tolist() == [[True, True], [True, True], [True, False]]
    assert rows.has_target[1].tolist() == [[True, True], [True, False], [False, False]]


def test_some_rows_of_long_answers_are_drawn_at_random_and_never_twice():
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(40):
        (row,) = choose_rows(predicting((5, 25)), 6, 3, generator).positions.tolist()
        assert row == sorted(set(row))
        assert len(row) == 6
        seen |= set(row)
    assert seen == set(range(5, 24)), "the last row has nothing to look at"


def test_without_a_generator_rows_are_spread_evenly():
    assert choose_rows(predicting((0, 11)), 5, 1, None).positions.tolist() == [[0, 2, 4, 6, 8]]


def test_an_answer_of_one_token_has_nothing_to_learn_from():
    rows = choose_rows(predicting((3, 4), (0, 3)), 9, 2, None)
    assert not rows.has_target[0].any()
    assert rows.has_target[1].any()


def test_a_finished_run_leaves_streams_with_the_tree_they_are_judged_with(task, tmp_path):
    blur(task.module)
    judgement = task.finish(tmp_path / "streams", target_name="tiny", metadata={}, progress=lambda *_: None)
    loaded = load_streams(tmp_path / "streams", task.target)
    assert len(loaded.paths) == 8
    assert [result.tree_size for result in judgement.acceptance] == [4, 8, 0]
    conversations = task.states.conversations
    greedy = [conversations[index] for index in range(10, 14) if conversations[index].temperature == 0]
    committed = {round(one.mean_acceptance_length * one.num_rounds) for one in judgement.acceptance}
    assert committed == {sum(len(row.answer) for row in greedy)}


def test_trees_are_grown_on_training_answers_alone(task, tmp_path, monkeypatch):
    seen = []
    level_ranks = StreamTree.level_ranks

    def spy(self, ids, *, start, features_TE):
        seen.append((bool(self.paths), tuple(ids)))
        return level_ranks(self, ids, start=start, features_TE=features_TE)

    monkeypatch.setattr(StreamTree, "level_ranks", spy)
    task.finish(tmp_path / "streams", target_name="tiny", metadata={}, progress=lambda *_: None)
    held_out = {task.states.conversations[index].ids for index in range(10, 14)}
    assert {ids for judged, ids in seen if judged} <= held_out
    assert not {ids for judged, ids in seen if not judged} & held_out


def test_without_greedy_answers_the_tree_is_grown_on_sampled_ones(task, tmp_path):
    task.states.conversations = [row._replace(temperature=0.8) for row in task.states.conversations]
    judgement = task.finish(tmp_path / "streams", target_name="tiny", metadata={}, progress=lambda *_: None)
    assert len(load_streams(tmp_path / "streams", task.target).paths) == 8
    assert judgement.acceptance == ()
