"""Streams of a trained draft foresee the draft, and leave it as it is."""

import numpy as np
import pytest
import torch

from decoding.errors import TrainingError
from runtime.drafters.language_model.folder import DrafterFolderConfig, load_draft
from runtime.storage.weight_folder import load_folder
from tests.runtime.drafters.streams.test_model import streams_of_row
from training.data.conversations import read_conversations
from training.data.states import TargetStates
from training.judging.card import read_card
from training.recipe import DraftRecipe, DraftStreamRecipe, Optimisation
from training.run import run_recipe
from training.tasks.draft_streams import DraftStreamTask

SHORT = Optimisation(num_tokens=60, conversations_per_step=3, learning_rate=3e-3, warmup_steps=2)
COMMON = {"vocab_size": 32, "num_held_out": 4, "optimisation": SHORT}
SIZES = {"start_layer": 1, "num_streams": 2, "rank": 2, "rows_per_conversation": 99}


@pytest.fixture(scope="module")
def drafters(target_folder, data_path, tmp_path_factory):
    """Folders of a draft without features and of one with."""
    root = tmp_path_factory.mktemp("drafters")
    folders = []
    for name, features in (("plain", ()), ("features", (1, 3))):
        recipe = DraftRecipe(source_layers=(1, 2, 4), exit_features=features, windows=(2,), **COMMON)
        folders.append(run_recipe(recipe, target_folder, [data_path], root / name))
    return folders


def stream_recipe(folder, features=(), **changes):
    return DraftStreamRecipe(drafter=str(folder), exit_features=features, **SIZES | COMMON | changes)


def stream_task(target, data_path, tmp_path, recipe):
    conversations = read_conversations([data_path], vocab_size=61)
    states = TargetStates(tmp_path / "states", target, conversations, recipe.state_layers)
    states.fill()
    return DraftStreamTask(recipe, torch.arange(32), states)


def test_the_loss_compares_each_stream_with_what_the_draft_says_later(target, data_path, tmp_path, drafters) -> None:
    task = stream_task(target, data_path, tmp_path, stream_recipe(drafters[0]))
    torch.manual_seed(7)
    for weight in task.module.trained.values():
        torch.nn.init.normal_(weight, std=0.1)
    draft = task.draft.float()
    row = task.states.conversations[5]
    with torch.no_grad():
        final = draft(torch.tensor([row.ids]), positions=torch.arange(len(row.ids)), mask=causal(len(row.ids)))[0]
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


def causal(width):
    return torch.full((width, width), float("-inf")).triu_(diagonal=1)


def test_learning_lowers_the_loss_and_moves_nothing_but_the_streams(target, data_path, tmp_path, drafters) -> None:
    task = stream_task(target, data_path, tmp_path, stream_recipe(drafters[1], (1, 3), featureless_share=0))
    before = {name: weight.clone() for name, weight in task.draft.named_parameters() if not weight.requires_grad}
    optimizer = torch.optim.AdamW(task.module.trained.values(), lr=2e-2)
    losses = []
    for step in range(20):
        loss, _ = task.loss([0, 1, 2, 3], torch.Generator().manual_seed(step % 2))
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.95 * losses[0]
    after = dict(task.draft.named_parameters())
    assert before
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_a_run_ends_with_the_same_draft_its_streams_and_its_card(
    target, target_folder, data_path, tmp_path, drafters
) -> None:
    source = drafters[1]
    folder = run_recipe(stream_recipe(source, (1, 3)), target_folder, [data_path], tmp_path / "run")
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


def test_a_recipe_must_name_the_features_that_the_draft_reads(target, data_path, tmp_path, drafters) -> None:
    with pytest.raises(TrainingError, match=r"exit_features \[\]: .* reads the target's layers \[1, 3\]"):
        stream_task(target, data_path, tmp_path, stream_recipe(drafters[1]))


def test_a_drafter_without_a_card_is_refused_before_any_training(target, data_path, tmp_path, drafters) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((drafters[0] / name).read_bytes())
    with pytest.raises(TrainingError, match="not a readable card"):
        stream_task(target, data_path, tmp_path, stream_recipe(bare))
