"""The reference feeds one chain of rows for every root, and sums losses position by position."""

import math

import pytest
import torch

from runtime.models.decoder import rms_norm
from tests.tiny_eagle import plain_entered, plain_features, plain_log_probs, tiny_eagle1, tiny_eagle3
from training.recipe import Eagle1Recipe, Eagle3Recipe, Optimisation
from training.tasks.eagle import EagleRows, EagleTask, initial_head, unroll

KEPT = torch.arange(0, 61, 2)
STATE_LAYERS = (1, 2, 3)
COMMON = {
    "source_layer": 4,
    "vocab_size": len(KEPT),
    "num_held_out": 4,
    "tree_depth": 3,
    "tree_top_k": 2,
    "tree_sizes": (4, 8),
    "optimisation": Optimisation(num_tokens=50),
}


def eagle1(**changes):
    return Eagle1Recipe(**COMMON | changes)


def eagle3(**changes):
    return Eagle3Recipe(**COMMON | {"feature_layers": (1, 2, 3)} | changes)


@pytest.fixture(params=["eagle1", "eagle3"])
def kind(request):
    return request.param


@pytest.fixture
def task(kind, target, states):
    """A task whose head is far from its start."""
    task = EagleTask(eagle1(noise=0) if kind == "eagle1" else eagle3(num_steps=3), KEPT, states)
    other = tiny_eagle1(target) if kind == "eagle1" else tiny_eagle3(target)
    with torch.no_grad():
        for parameter, value in zip(task.module.parameters(), other.parameters(), strict=True):
            parameter.copy_(value)
    return task


def taps(states, index, kind):
    """Features of every position of a conversation at unit scale, [T, E]."""
    norm = states.target.final_norm
    layers = (4,) if kind == "eagle1" else (1, 2, 3)
    rows = [states.rows(layer, index).float() / (norm if layer == 4 else 1.0) for layer in layers]
    return torch.cat([rms_norm(row, torch.ones(16), 1e-5) for row in rows], dim=-1)


def plain_steps(task, kind, index, num_steps):
    """By step, for each root: its position and the feature behind it, on the head's own features from step 1 on."""
    row = task.states.conversations[index]
    entered = plain_entered(task.module, taps(task.states, index, kind))
    steps = [[] for _ in range(num_steps)]
    for root in range(max(len(row.prompt) - 1, 1), len(row.ids) - 1):
        fed = entered[:root]
        for step in range(num_steps):
            if root + step == len(row.ids) - 1:
                break
            done = plain_features(task.module, row.ids[1 : root + step + 1], fed)
            steps[step].append((root + step, done[-1]))
            fed = torch.cat([fed, done[-1:]])
    return steps


def teacher(states, index, position):
    """The target's probabilities of the kept ids behind a position."""
    return (states.target.lm_head.weight[KEPT] @ states.rows(4, index)[position].float()).softmax(0)


def test_every_step_goes_on_as_if_its_chain_had_been_drafted(task, kind, states):
    batch = [0, 3, 4]
    rows = EagleRows.of(states, batch)
    entered = plain_entered(task.module, torch.cat([taps(states, index, kind)[:-2] for index in batch]))
    with torch.no_grad():
        found = list(unroll(task.module, rows, entered, 3))
    plain = [plain_steps(task, kind, index, 3) for index in batch]
    for step, features in enumerate(found):
        expected = [feature for steps in plain for _, feature in steps[step]]
        assert torch.allclose(features[rows.surviving(step)], torch.stack(expected), rtol=1e-3, atol=1e-4), step


def test_the_loss_of_eagle1_is_the_distance_of_features_and_some_cross_entropy(target, states):
    task = EagleTask(eagle1(noise=0, cross_entropy_weight=0.3), KEPT, states)
    torch.nn.init.normal_(task.module.layer.out.weight, std=0.3)
    distances, entropies = [], []
    for index in (2, 6):
        for position, feature in plain_steps(task, "eagle1", index, 1)[0]:
            off = (feature - states.rows(4, index)[position].float()).abs().tolist()
            distances += [0.5 * x * x if x < 1 else x - 0.5 for x in off]
            entropies.append(-float(teacher(states, index, position) @ plain_log_probs(task.module, feature)))
    loss, num_tokens = task.loss([2, 6], torch.Generator())
    assert num_tokens == len(entropies) == sum(len(states.conversations[index].answer) for index in (2, 6))
    expected = sum(distances) / len(distances) + 0.3 * sum(entropies) / len(entropies)
    assert float(loss.detach()) == pytest.approx(expected, rel=0.03)


def test_noise_moves_what_eagle1_is_fed(target, states):
    task = EagleTask(eagle1(noise=0.5), KEPT, states)
    first, second = (float(task.loss([0], torch.Generator().manual_seed(seed))[0].detach()) for seed in (0, 1))
    assert first != second
    assert first == float(task.loss([0], torch.Generator().manual_seed(0))[0].detach())


def test_the_loss_of_eagle3_is_the_cross_entropy_of_all_steps_each_worth_less(target, states):
    task = EagleTask(eagle3(num_steps=3, step_weight=0.5), KEPT, states)
    torch.nn.init.normal_(task.module.layer.out.weight, std=0.3)
    entropies = [[], [], []]
    for index in (2, 6):
        for step, rows in enumerate(plain_steps(task, "eagle3", index, 3)):
            for position, feature in rows:
                log_probs = plain_log_probs(task.module, feature)
                entropies[step].append(-float(teacher(states, index, position) @ log_probs))
    loss, num_tokens = task.loss([2, 6], torch.Generator())
    assert num_tokens == len(entropies[0])
    expected = sum(0.5**step * sum(values) / len(values) for step, values in enumerate(entropies))
    assert float(loss.detach()) == pytest.approx(expected, rel=0.03)


def test_held_out_agreement_is_counted_step_by_step(task, kind, states):
    found = task.evaluate()
    hits = [[] for _ in range(4)]
    for index in range(10, 14):
        for step, rows in enumerate(plain_steps(task, kind, index, 4)):
            for position, feature in rows:
                best = plain_log_probs(task.module, feature).argmax()
                hits[step].append(bool(best == teacher(states, index, position).argmax()))
    for step, values in enumerate(hits):
        share = sum(values) / len(values)
        assert found[f"agreement_step{step + 1}"] == pytest.approx(share, abs=2.5 / len(values)), step


def test_a_head_starts_as_the_least_squares_guess_of_what_is_wanted(kind, target, states):
    """By the conversations that it is trained on: the last ones are held out."""
    recipe = eagle1() if kind == "eagle1" else eagle3()
    head = initial_head(recipe, KEPT, states)
    batch = list(range(len(states.conversations) - recipe.num_held_out))
    rows = EagleRows.of(states, batch)
    features = torch.cat([taps(states, index, kind)[:-2] for index in batch])
    wanted = torch.cat([states.rows(4, index)[1:-1].float() for index in batch])
    if kind == "eagle1":
        inputs = torch.cat([head.embedding(rows.ids), features * target.final_norm], dim=-1)
    else:
        inputs, wanted = features, wanted / target.final_norm
    best = torch.linalg.lstsq(inputs, wanted).solution
    least = float((inputs @ best - wanted).square().mean())
    with torch.no_grad():
        entered = head.input_feature(features)
        (found,) = unroll(head, rows, entered, 1)
        guess = inputs @ head.fuse.weight.T
    assert torch.allclose(found, guess[rows.roots], atol=1e-5), "the layer adds nothing yet"
    assert float((guess - wanted).square().mean()) == pytest.approx(least, rel=0.1)


def test_a_head_trains_in_float32_on_frozen_rows_of_the_target(kind, target, states):
    lower = type(target)(target.config)
    lower.load_state_dict(target.state_dict())
    states.target = lower.to(torch.bfloat16)
    head = initial_head(eagle1() if kind == "eagle1" else eagle3(), KEPT, states)
    assert {weight.dtype for weight in head.parameters()} == {torch.float32}
    frozen = {name for name, weight in head.named_parameters() if not weight.requires_grad}
    assert frozen == {"embedding.weight", "lm_head.weight"}
    assert torch.equal(head.lm_head.weight, target.lm_head.weight[KEPT])


def test_the_finished_head_is_judged_as_it_lies_on_disk(task, states, tmp_path):
    judgement = task.finish(tmp_path / "eagle", target_name="tiny", metadata={}, progress=lambda *_: None)
    assert [(result.num_tokens, result.tree_size) for result in judgement.acceptance] == [(3, 4), (3, 8)]
    greedy = [row for row in states.conversations[10:] if row.temperature == 0]
    for result in judgement.acceptance:
        assert round(result.mean_acceptance_length * result.num_rounds) == sum(len(row.answer) for row in greedy)
        assert 1 <= result.mean_acceptance_length <= 4 or math.isnan(result.mean_acceptance_length)
