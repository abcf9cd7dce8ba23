from pathlib import Path

import pytest

from decoding.errors import ConfigError
from training.text.text_recipe import PassageRecipe, SelfTextRecipe, load_text_recipe

FOLDER = Path(__file__).parents[3] / "training" / "recipes"
GOOD = """\
kind: passages
num_conversations: 5
passage_tokens: [10, 20]
templates:
  - "Summarize: {passage}"
"""


def test_the_shipped_recipes_are_valid_and_name_nothing_twice():
    opened = load_text_recipe(FOLDER / "smollm2-135m-selfgen.yaml")
    assert isinstance(opened, SelfTextRecipe)
    assert len(set(opened.openers)) == len(opened.openers) > 90
    long = load_text_recipe(FOLDER / "smollm2-135m-passages.yaml")
    assert isinstance(long, PassageRecipe)
    assert len(set(long.templates)) == len(long.templates) > 15


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: passages", "kind: draft", r"recipe.yaml:1:\d+: .*'selfgen', 'passages'"),
        ("[10, 20]", "[20, 10]", r"passage_tokens: 20 is more than 10"),
        ("[10, 20]", "[0, 10]", r"recipe.yaml:3:\d+: .*greater than 0, found 0"),
        ("Summarize: {passage}", "Summarize:", r"template 'Summarize:' has no {passage}"),
        ("num_conversations", "num", r"recipe.yaml:2:\d+: .*Extra inputs"),
    ],
)
def test_a_wrong_recipe_is_answered_with_line_and_rule(tmp_path, old, new, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_text_recipe(path)
