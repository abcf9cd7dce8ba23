import json
from pathlib import Path

import pytest

from training.judging.card import read_card

COMMON = "vocab_size: 32\nnum_held_out: 2\noptimisation:\n  num_tokens: 40\n  conversations_per_step: 2\n"
RECIPES = {
    "draft": f"kind: draft\nsource_layers: [1, 4]\nwindows: [2]\n{COMMON}",
    "medusa": f"kind: medusa\nnum_heads: 2\n{COMMON}",
    "exit": f"kind: exit\nexit_layers: [2]\nwidth: 4\n{COMMON}",
}


@pytest.fixture
def words(tiny_folders, tmp_path):
    data = tmp_path / "answers.jsonl"
    rows = [{"prompt": [5, 6 + row], "answer": [7, 8, 9, 10 + row], "temperature": 0.0} for row in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ("--target", tiny_folders.target, "--data", data, "--out", tmp_path / "mine")


@pytest.fixture
def recipe(tmp_path):
    def write(kind):
        path = tmp_path / f"{kind}.yaml"
        path.write_text(RECIPES[kind])
        return path

    return write


@pytest.mark.parametrize(("verb", "kind"), [("draft", "draft"), ("exits", "exit")])
def test_training_ends_with_a_folder_and_its_card(mirrorsd, words, recipe, verb, kind):
    result = mirrorsd("train", verb, *words, "--recipe", recipe(kind))
    assert result.exit_code == 0, result.stderr
    assert "Trained weights:" in result.stdout
    assert ("Exit coverage" in result.stdout) == (kind == "exit")
    finished = json.loads(mirrorsd("train", verb, *words, "--recipe", recipe(kind), "--json").stdout)
    card = read_card(Path(finished["folder"]))
    assert card.model_dump(mode="json") == finished["card"]
    assert (card.name, card.kind) == ("mine", kind)


def test_a_recipe_of_any_kind_is_trained_by_its_name(mirrorsd, words, recipe):
    finished = json.loads(mirrorsd("train", "recipe", recipe("medusa"), *words, "--json").stdout)
    card = read_card(Path(finished["folder"]))
    assert (card.name, card.kind) == ("mine", "medusa")
    assert card.curve[-1].num_tokens == card.num_training_tokens >= 40


def test_recipes_on_the_same_data_share_the_targets_states(mirrorsd, words, recipe, tmp_path):
    shared = tmp_path / "states"
    assert mirrorsd("train", "draft", *words, "--recipe", recipe("draft"), "--states", shared).exit_code == 0
    before = {path.name: path.read_bytes() for path in shared.glob("*.bin")}
    assert sorted(before) == ["layer-4.bin"]
    other = (*words[:-1], tmp_path / "exits")
    assert mirrorsd("train", "exits", *other, "--recipe", recipe("exit"), "--states", shared).exit_code == 0
    after = {path.name: path.read_bytes() for path in shared.glob("*.bin")}
    assert sorted(after) == ["layer-2.bin", "layer-4.bin"]
    assert after["layer-4.bin"] == before["layer-4.bin"]
    assert list(tmp_path.glob("*/states")) == []


def test_states_of_other_data_are_refused(mirrorsd, words, recipe, tmp_path):
    shared = tmp_path / "states"
    assert mirrorsd("train", "draft", *words, "--recipe", recipe("draft"), "--states", shared).exit_code == 0
    data = tmp_path / "answers.jsonl"
    data.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    other = (*words[:-1], tmp_path / "again")
    result = mirrorsd("train", "draft", *other, "--recipe", recipe("draft"), "--states", shared)
    assert result.exit_code == 2
    assert "holds the states of another target or other data" in result.stderr


def test_a_recipe_of_another_kind_is_refused(mirrorsd, words, recipe):
    result = mirrorsd("train", "draft", *words, "--recipe", recipe("exit"))
    assert result.exit_code == 2
    assert "is a recipe of kind 'exit', not 'draft'" in result.stderr


def test_an_unknown_recipe_lists_those_that_ship(mirrorsd, words):
    result = mirrorsd("train", "draft", *words, "--recipe", "mine")
    assert result.exit_code == 2
    assert "no shipped recipe of that name (smollm2-135m-draft4" in result.stderr


def test_a_malformed_recipe_is_named_with_line_and_value(mirrorsd, words, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("kind: draft\nsource_layers: [0]\n")
    result = mirrorsd("train", "draft", *words, "--recipe", path)
    assert result.exit_code == 2
    assert "recipe.yaml:2:" in result.stderr


def test_missing_data_is_named(mirrorsd, tiny_folders, recipe, tmp_path):
    words = ("--target", tiny_folders.target, "--data", tmp_path / "nowhere.jsonl", "--out", tmp_path / "mine")
    result = mirrorsd("train", "draft", *words, "--recipe", recipe("draft"))
    assert result.exit_code == 2
    assert "nowhere.jsonl: cannot be read" in result.stderr


def test_own_text_needs_a_chat_template(mirrorsd, tiny_folders, tmp_path):
    out = tmp_path / "text.jsonl.gz"
    result = mirrorsd("train", "generate", "--target", tiny_folders.target, "--out", out)
    assert result.exit_code == 2
    assert "this model has no chat template" in result.stderr
    assert not out.exists()
