"""Streams of a draft: of a frozen one, which they foresee, and of one that learns with them, each from its own loss."""

import shutil

import numpy as np
import pytest
import torch

from decoding.errors import TrainingError
from runtime.drafters.language_model.folder import DrafterFolderConfig, load_draft
from runtime.storage.weight_folder import load_folder, save_folder
from tests.runtime import plain
from tests.runtime.drafters.streams.test_model import streams_of_row
from tests.training.conftest import assert_learns
from training.data.batch import make_batch, shifted_features, soft_cross_entropy
from training.judging.card import read_card
from training.recipe import DraftRecipe, DraftStreamRecipe, Optimisation, StreamingDraftRecipe
from training.run import run_recipe
from training.tasks import stream_tasks
from training.tasks.chain_draft import answer_logits, periodic_presence
from training.tasks.stream_tasks import DraftStreamTask, StreamingDraftTask

SHORT = Optimisation(num_tokens=60, conversations_per_step=3, learning_rate=3e-3, warmup_steps=2)
COMMON = {"vocab_size": 32, "num_held_out": 4, "optimisation": SHORT}
SIZES = {"start_layer": 1, "num_streams": 2, "rank": 2, "rows_per_conversation": 99, "exit_features": (1, 3)}
KEPT = torch.arange(32)
STATE_LAYERS = (1, 3)
BATCH = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def drafters(named_target, data_path, tmp_path_factory):
    """Folders of a draft without features and of one with, both without streams."""
    root = tmp_path_factory.mktemp("drafters")
    return [
        run_recipe(
            DraftRecipe(source_layers=(1, 2, 4), exit_features=features, windows=(2,), **COMMON),
            named_target,
            [data_path],
            root / f"features{len(features)}",
        )
        for features in ((), (1, 3))
    ]


@pytest.fixture
def drafter(drafters):
    return drafters[1]


def frozen(folder, features=(1, 3), **changes):
    """The recipe of streams of a draft that stays what it is."""
    return DraftStreamRecipe(**{"drafter": str(folder)} | SIZES | {"exit_features": features} | COMMON | changes)


@pytest.fixture
def recipe(drafter):
    return lambda **changes: StreamingDraftRecipe(
        **{"drafter": str(drafter), "windows": (2,)} | SIZES | COMMON | changes
    )


def blur(task):
    """Give streams that do nothing yet something to say."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in task.streams.trained.values():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return task


def loss_of(task):
    return float(task.loss(BATCH, torch.Generator().manual_seed(0))[0].detach())


def own_loss(task):
    """The cross-entropy of the draft to the target, features at every second position."""
    rows = make_batch(task.states, BATCH)
    features = shifted_features(task.states, BATCH, (1, 3), periodic_presence(rows.ids.shape, 2))
    with torch.no_grad():
        logits = answer_logits(task.draft, rows, features)
    return float(soft_cross_entropy(logits, rows.final_MD @ task.head_VD.T))


def learn(task, num_steps, without_own=False):
    optimizer = torch.optim.AdamW([p for p in task.module.parameters() if p.requires_grad], lr=1e-2)
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step % 2)
        if without_own:
            loss, _ = task.stream_loss(task.texts(BATCH, generator), generator)
        else:
            loss, _ = task.loss(BATCH, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_loss_is_the_drafts_own_and_the_weighted_one_of_its_streams(recipe, states, drafter, monkeypatch):
    monkeypatch.setattr(stream_tasks, "random_presence", lambda shape, *_: periodic_presence(shape, 2))
    light, heavy = (blur(StreamingDraftTask(recipe(stream_weight=weight), KEPT, states)) for weight in (0.25, 1.25))
    of_streams = loss_of(blur(DraftStreamTask(frozen(drafter), KEPT, states)))
    assert loss_of(heavy) - loss_of(light) == pytest.approx(of_streams, rel=0.03)
    assert loss_of(light) == pytest.approx(own_loss(light) + 0.25 * of_streams, rel=0.03)


def test_answer_tokens_are_what_a_step_counts(recipe, states):
    _, num_tokens = StreamingDraftTask(recipe(), KEPT, states).loss(BATCH, torch.Generator())
    assert num_tokens == sum(len(states.conversations[index].answer) for index in BATCH)


def test_gradients_reach_the_whole_draft_and_its_streams_but_not_what_is_the_targets(recipe, states):
    task = blur(StreamingDraftTask(recipe(featureless_share=0), KEPT, states))
    task.loss(BATCH, torch.Generator())[0].backward()
    frozen = {"draft.decoder.embedding.weight", "draft.decoder.lm_head.weight"}
    for name, weight in task.module.named_parameters():
        assert weight.requires_grad == (name not in frozen), name
        assert (weight.grad is not None and bool(weight.grad.any())) == (name not in frozen), name


def test_streams_move_the_draft_too_but_not_through_what_they_are_to_foresee(recipe, states):
    task = blur(StreamingDraftTask(recipe(), KEPT, states))
    generator = torch.Generator().manual_seed(0)
    texts = task.texts(BATCH, generator)
    texts.batch.final_MD.retain_grad()
    task.stream_loss(texts, generator)[0].backward()
    assert texts.batch.final_MD.grad is None
    assert all(layer.qkv.weight.grad.any() for layer in task.draft.decoder.layers)


def test_its_own_loss_is_what_keeps_a_draft_from_forgetting(recipe, states):
    together, alone = (StreamingDraftTask(recipe(), KEPT, states) for _ in range(2))
    before = own_loss(together)
    learn(together, 12)
    learn(alone, 12, without_own=True)
    assert own_loss(together) < before < own_loss(alone)


def test_the_draft_goes_on_at_a_share_of_the_rate_that_its_streams_begin_with(recipe, states):
    task = StreamingDraftTask(recipe(draft_rate_share=0.2), KEPT, states)
    shares = {name: task.rate_share(name) for name, _ in task.module.named_parameters()}
    assert {share for name, share in shares.items() if name.startswith("draft.")} == {0.2}
    assert {
        name.removeprefix("streams.") for name, share in shares.items() if share == 1
    } == task.streams.trained.keys()


def test_a_run_ends_with_a_new_draft_its_streams_and_a_card_of_their_own(
    recipe, target, named_target, data_path, drafter, tmp_path
):
    folder = run_recipe(recipe(), named_target, [data_path], tmp_path / "run")
    draft, earlier = load_draft(folder, target, dtype=torch.float32), load_draft(drafter, target, dtype=torch.float32)
    assert draft.config.streams.num_streams == 2
    assert draft.streams.embedding.any()
    assert not torch.equal(draft.decoder.layers[0].qkv.weight, earlier.decoder.layers[0].qkv.weight)
    assert torch.equal(draft.decoder.embedding.weight, earlier.decoder.embedding.weight)
    card = read_card(folder)
    assert (card.name, card.kind) == ("run", "streaming_draft")
    assert card.held_out.keys() >= {"agreement_with_features", "agreement_stream2_top1"}
    assert [(one.num_tokens, one.with_features) for one in card.acceptance] == [(2, False), (2, True)]
    assert "Draft model with streams" in (folder / "card.md").read_text(encoding="utf-8")


def test_training_goes_on_with_a_draft_that_had_streams_before(recipe, named_target, data_path, tmp_path):
    first = run_recipe(recipe(), named_target, [data_path], tmp_path / "first")
    again = run_recipe(recipe(drafter=str(first), num_streams=1), named_target, [data_path], tmp_path / "again")
    assert read_card(again).num_parameters < read_card(first).num_parameters


def test_a_run_does_not_go_on_in_a_draft_that_changed(drafter, recipe, named_target, data_path, tmp_path):
    base = shutil.copytree(drafter, tmp_path / "base")
    own = recipe(drafter=str(base))
    run_recipe(own, named_target, [data_path], tmp_path / "run")
    config, arrays = load_folder(base, DrafterFolderConfig)
    save_folder(base, config, arrays | {"decoder.final_norm": arrays["decoder.final_norm"] + 1})
    with pytest.raises(TrainingError, match="drafter_weights .*; name another folder"):
        run_recipe(own, named_target, [data_path], tmp_path / "run")


# Of a frozen draft


def test_the_loss_compares_each_stream_with_what_the_draft_says_later(states, drafters):
    task = blur(DraftStreamTask(frozen(drafters[0], ()), KEPT, states))
    draft = task.draft.float()
    row = task.states.conversations[5]
    with torch.no_grad():
        final = plain.draft_states(draft, row.ids)
        losses = {0: [], 1: []}
        for position in range(len(row.prompt) - 1, len(row.ids) - 2):
            hidden = streams_of_row(draft.decoder, task.module, list(row.ids), position)
            for stream, values in losses.items():
                if position + stream + 1 < len(row.ids) - 1:
                    wanted = draft.decoder.lm_head(final[position + stream + 1]).softmax(-1)
                    own = draft.decoder.lm_head(hidden[stream]).log_softmax(-1)
                    values.append(float(-(wanted * own).sum()))
    first, second = (sum(values) / len(values) for values in losses.values())
    loss, num_rows = task.loss([5], torch.Generator())
    assert float(loss.detach()) == pytest.approx((first + 0.8 * second) / 1.8, rel=0.03)
    assert num_rows == len(losses[0])


def test_learning_lowers_the_loss_and_moves_nothing_but_the_streams(states, drafters):
    task = DraftStreamTask(frozen(drafters[1], featureless_share=0), KEPT, states)
    weights = task.module.trained.values()
    assert_learns(task, weights, frozen=task.draft, batch=BATCH, num_steps=20, rate=2e-2, share=0.95)


def test_a_run_ends_with_the_same_draft_its_streams_and_its_card(target, named_target, data_path, tmp_path, drafters):
    source = drafters[1]
    folder = run_recipe(frozen(source), named_target, [data_path], tmp_path / "run")
    draft = load_draft(folder, target, dtype=torch.float32)
    assert draft.config.streams.num_streams == 2
    _, before = load_folder(source, DrafterFolderConfig)
    _, after = load_folder(folder, DrafterFolderConfig)
    assert all(np.array_equal(array, after[name]) for name, array in before.items())
    card, earlier = read_card(folder), read_card(source)
    assert (card.name, card.held_out, card.acceptance) == (earlier.name, earlier.held_out, earlier.acceptance)
    assert card.num_bytes == (folder / "model.safetensors").stat().st_size > earlier.num_bytes
    figures = card.benchmarks["draft_streams, held out"]
    assert figures["training_tokens"] >= 60
    assert 0 <= figures["agreement_stream2_top1"] <= figures["agreement_stream2_top8"] <= 1


def test_a_recipe_must_fit_the_draft_and_the_draft_have_a_card(states, tmp_path, drafters):
    with pytest.raises(TrainingError, match=r"exit_features \[\]: .* reads the target's layers \[1, 3\]"):
        DraftStreamTask(frozen(drafters[1], ()), KEPT, states)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((drafters[0] / name).read_bytes())
    with pytest.raises(TrainingError, match="not a readable card"):
        DraftStreamTask(frozen(bare, ()), KEPT, states)
