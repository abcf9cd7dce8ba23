"""Whole runs on the tiny target: a few steps, a folder, a card."""

import gzip
from pathlib import Path

import pytest
import torch

from decoding.errors import TrainingError
from runtime.drafters.language_model.folder import load_draft
from runtime.drafters.registry import SHIPPED_FOLDER
from runtime.models.model_folder import NamedFolder
from runtime.target.early_exits import load_exits
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_target
from training import trainer
from training.judging.card import TaskAcceptance, add_acceptance, add_benchmark, read_card
from training.recipe import DraftRecipe, Eagle1Recipe, ExitRecipe, HydraRecipe, Optimisation, StreamRecipe
from training.run import run_recipe

OPTIMISATION = Optimisation(num_tokens=300, conversations_per_step=3, learning_rate=3e-3, warmup_steps=2)
DRAFT = DraftRecipe(
    source_layers=(1, 2, 4),
    exit_features=(1, 3),
    feature_layer=1,
    vocab_size=32,
    always_kept=(2, 60),
    num_held_out=4,
    windows=(2, 3),
    optimisation=OPTIMISATION,
)
EXITS = ExitRecipe(exit_layers=(2, 3), width=8, vocab_size=32, num_held_out=4, optimisation=OPTIMISATION)


@pytest.fixture
def run(named_target, data_path, tmp_path):
    def start(recipe, name="tiny-drafter", target=named_target, **options):
        return run_recipe(recipe, target, [data_path], tmp_path / name, **options)

    return start


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_draft_recipe_ends_in_a_draft_that_loads_and_a_card(run, target):
    folder = run(DRAFT)
    draft = load_draft(folder, target, dtype=torch.float32)
    assert draft.config.exit_features == (1, 3)
    assert {2, 60} <= set(draft.kept_ids.tolist())
    card = read_card(folder)
    assert (card.name, card.kind, card.target) == ("tiny-drafter", "draft", "tiny-target")
    assert card.num_parameters == sum(
        weight.numel() for name, weight in draft.named_parameters() if "embedding" not in name and "head" not in name
    )
    assert card.num_bytes == (folder / "model.safetensors").stat().st_size
    assert 300 <= card.num_training_tokens < 340
    assert card.data.files == ("answers.jsonl.gz",)
    assert (card.data.num_conversations, card.data.num_held_out) == (14, 4)
    assert set(card.held_out) >= {"agreement_with_features", "agreement_without_features"}
    assert [(row.num_tokens, row.with_features) for row in card.acceptance] == [
        (2, False),
        (3, False),
        (2, True),
        (3, True),
    ]
    assert all(1 <= row.mean_acceptance_length <= row.num_tokens + 1 for row in card.acceptance)


def test_an_exit_recipe_ends_in_adapters_that_load_and_a_table_of_coverage(run, target, tmp_path):
    folder = run(EXITS)
    assert sorted(load_exits(folder, target, dtype=torch.float32).adapters) == [2, 3]
    card = read_card(folder)
    assert card.exit_coverage.keys() == card.untrained_exit_coverage.keys() == {2, 3}
    assert list(card.exit_coverage[2]) == [1, 2, 4, 8, 16]
    assert "| 3, trained |" in card.text
    assert "| 3, untrained |" in card.text
    for name in ("card.json", "card.md", "config.json"):
        assert str(tmp_path.parent) not in (folder / name).read_text(), "nothing depends on where a run took place"


@pytest.mark.parametrize("recipe", [DRAFT, EXITS], ids=["draft", "exits"])
def test_an_interrupted_and_resumed_run_writes_the_same_weights(run, recipe, monkeypatch):
    whole = run(recipe, name="whole/tiny-drafter")

    def interrupt(event):
        if event.stage == "training" and event.report.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer.train, "__kwdefaults__", trainer.train.__kwdefaults__ | {"report_every_s": 0.0})
    with pytest.raises(KeyboardInterrupt):
        run(recipe, name="cut/tiny-drafter", progress=interrupt)
    resumed = run(recipe, name="cut/tiny-drafter")
    assert files(resumed)["model.safetensors"] == files(whole)["model.safetensors"]
    assert files(resumed)["config.json"] == files(whole)["config.json"]
    cards = [read_card(folder).model_copy(update={"training_minutes": 0.0}) for folder in (whole, resumed)]
    assert cards[0] == cards[1]


def test_progress_names_the_stages_in_order(run):
    events = []
    run(EXITS, progress=events.append)
    assert list(dict.fromkeys(event.stage for event in events)) == ["states", "training", "judging"]
    assert all(0 <= event.done <= event.total or event.stage == "training" for event in events)
    assert events[-1].stage == "judging"


def test_conversations_that_come_twice_are_judged_or_trained_on(named_target, data_path, tmp_path):
    again = tmp_path / "again.jsonl"
    again.write_text("".join(gzip.decompress(data_path.read_bytes()).decode().splitlines(keepends=True)[3:]))
    card = read_card(run_recipe(EXITS, named_target, [data_path, again], tmp_path / "mine"))
    assert (card.data.num_conversations, card.data.num_held_out, card.data.num_left_out) == (21, 4, 4)
    assert "| left out: prompts of held-out ones | 4 |" in card.text


def test_too_few_conversations_and_damaged_ones_are_refused_before_the_target_is_loaded(
    named_target, data_path, tmp_path, monkeypatch
):
    monkeypatch.setattr("training.run.load_decoder", lambda *_, **__: pytest.fail("the target was loaded"))
    with pytest.raises(TrainingError, match="num_held_out 14 leaves nothing to train on: there are 14 conversations"):
        run_recipe(EXITS.model_copy(update={"num_held_out": 14}), named_target, [data_path], tmp_path / "mine")
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text('{"prompt": [1], "answer": [')
    with pytest.raises(TrainingError, match=r"damaged\.jsonl:1: expected an object with token lists"):
        run_recipe(EXITS, named_target, [damaged], tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_run_of_other_data_is_refused(named_target, data_path, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("".join(gzip.decompress(data_path.read_bytes()).decode().splitlines(keepends=True)[:-1]))
    run_recipe(EXITS, named_target, [data_path], tmp_path / "mine")
    with pytest.raises(TrainingError, match=r"run.json: the run here has data \w+, not \w+; name another folder"):
        run_recipe(EXITS, named_target, [other], tmp_path / "mine")


def test_recipes_on_the_same_data_may_share_their_states(run, tmp_path):
    run(DRAFT, name="one", state_folder=tmp_path / "states")
    stages = []
    run(EXITS, name="two", state_folder=tmp_path / "states", progress=lambda event: stages.append(event.stage))
    assert "states" in stages, "layer 2 is new"
    stages.clear()
    run(EXITS, name="three", state_folder=tmp_path / "states", progress=lambda event: stages.append(event.stage))
    assert "states" not in stages


def test_a_folder_with_another_run_is_refused(run):
    run(EXITS)
    longer = EXITS.model_copy(update={"optimisation": OPTIMISATION.model_copy(update={"num_tokens": 301})})
    with pytest.raises(TrainingError, match=r"run.json: .*recipe.optimisation.num_tokens 300, not 301; name another"):
        run(longer)
    with pytest.raises(TrainingError, match=r"run.json: the run here has recipe\."):
        run(DRAFT)


def test_another_target_is_refused_before_training(run, tmp_path):
    def of(name, **options):
        return NamedFolder(name, save_target(tiny_target(**options), tmp_path / f"other-{name}", torch.bfloat16))

    run(EXITS, state_folder=tmp_path / "states")
    other = of("tiny-target", seed=8)
    with pytest.raises(TrainingError, match="holds the states of another target"):
        run(EXITS, "new", other, state_folder=tmp_path / "states")
    for name in ("tiny-target", "another"):
        with pytest.raises(TrainingError, match="the run here is of a target called tiny-target with other weights"):
            run(EXITS, target=other._replace(name=name), state_folder=tmp_path / "more")
    with pytest.raises(TrainingError, match=r"answers.jsonl.gz:\d+: \d+ is not a token id of the target \(0\.\.39\)"):
        run(EXITS, "new", of("small", vocab_size=40))


def test_a_run_goes_on_with_the_same_weights_by_whatever_name(run, named_target):
    first = files(run(EXITS))
    folder = run(EXITS, target=named_target._replace(name="owner/tiny"))
    assert files(folder)["model.safetensors"] == first["model.safetensors"]
    assert read_card(folder).target == "owner/tiny"


def test_a_run_in_the_working_folder_is_called_as_that_is(named_target, data_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_card(run_recipe(EXITS, named_target, [data_path], Path())).name == tmp_path.name


HEADS = {"vocab_size": 32, "num_held_out": 4, "optimisation": OPTIMISATION}


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (EXITS, {"vocab_size": 62}, r"vocab_size and always_kept reach up to 61: the target has ids 0\.\.60"),
        (EXITS, {"always_kept": (99,)}, "reach up to 99"),
        (EXITS, {"num_held_out": 14}, "num_held_out 14 leaves nothing to train on"),
        (EXITS, {"exit_layers": (2, 9)}, r"exit_layers 9: exits are after layers 1\.\.3"),
        (EXITS, {"exit_layers": (2, 4)}, r"exit_layers 4: exits are after layers 1\.\.3"),
        (DRAFT, {"source_layers": (1, 30)}, r"source_layers 30: the target has layers 1\.\.4"),
        (DRAFT, {"exit_features": (1, 4)}, r"exit_features 4: exits are after layers 1\.\.3"),
        (Eagle1Recipe(source_layer=5, **HEADS), {}, r"source_layer 5: the target has layers 1\.\.4"),
        (StreamRecipe(start_layer=4, **HEADS), {}, "start_layer 4: the target has no layer after it"),
        (
            HydraRecipe(prefix_width=99, head_width=8, shared_widths=(8,), **HEADS),
            {},
            "prefix_width 99: the target's layers have 24",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_leaves_no_trace(run, tmp_path, recipe, changes, message):
    with pytest.raises(TrainingError, match=message):
        run(recipe.model_copy(update=changes), progress=lambda event: pytest.fail(f"{event.stage} was begun"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(SHIPPED_FOLDER.glob("*/card.json"))])
def test_a_shipped_card_is_what_would_be_written_of_it(name):
    card, text = read_card(SHIPPED_FOLDER / name), (SHIPPED_FOLDER / name / "card.md").read_text(encoding="utf-8")
    assert card.text == text
    assert ("| answer positions with streams seen |" in text) == (card.kind == "streams")


def test_an_unusable_device_is_answered_with_the_usable_ones(run):
    with pytest.raises(TrainingError, match="device 'tpu' is not usable here; usable: cpu"):
        run(EXITS, device="tpu")


def test_benchmarks_and_acceptance_by_task_are_added_to_the_card_later(run):
    folder = run(EXITS)
    worse, better = (
        TaskAcceptance(mean_acceptance_length=mean, conditional_acceptance_rate=(0.5, 0.25)) for mean in (1.5, 1.7)
    )
    for figure in (1.73, 1.75):
        add_benchmark(folder, "Spec-Bench", {"mean_acceptance_length": figure})
    add_acceptance(folder, "shipped", {"4 drafted tokens": {"all": worse}})
    add_acceptance(folder, "shipped", {"4 drafted tokens": {"all": better, "qa": worse}})
    card, text = read_card(folder), (folder / "card.md").read_text()
    assert card.benchmarks == {"Spec-Bench": {"mean_acceptance_length": 1.75}}
    assert card.acceptance_on == {"shipped": {"4 drafted tokens": {"all": better, "qa": worse}}}
    for line in (
        "## Spec-Bench",
        "## Acceptance on shipped, by kind of task",
        "| 4 drafted tokens | qa | 1.50 | 0.50 0.25 |",
    ):
        assert line in text
    (folder / "card.json").write_text("{}")
    with pytest.raises(TrainingError, match=r"card.json: not a readable card \(\w+: Field required"):
        add_benchmark(folder, "x", {})
