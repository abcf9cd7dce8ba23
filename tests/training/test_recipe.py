import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from decoding.errors import ConfigError
from training.recipe import (
    PassageRecipe,
    RecipeFile,
    SelfTextRecipe,
    TextRecipe,
    TrainingRecipe,
    load_recipe,
    load_text_recipe,
)

TEXTS = ("selfgen", "passages")
FOLDER = Path(__file__).parents[2] / "training" / "recipes"
SHIPPED = sorted(FOLDER.glob("*.yaml"))

DRAFT = """\
kind: draft
source_layers: [1, 2]
exit_features: [2]
feature_layer: 1
optimisation:
  num_tokens: 1000
"""
PASSAGES = """\
kind: passages
num_conversations: 5
passage_tokens: [10, 20]
templates:
  - "Summarize: {passage}"
"""


@pytest.mark.parametrize(
    "path", [path for path in SHIPPED if path.stem.split("-")[-1] not in TEXTS], ids=lambda path: path.stem
)
def test_a_shipped_recipe_is_valid(path):
    recipe = load_recipe(path)
    assert recipe.optimisation.num_tokens > 100_000


def test_every_kind_and_a_draft_without_features_are_shipped():
    names = {path.stem.removeprefix("smollm2-135m-") for path in SHIPPED}
    assert names >= {"draft4", "draft4-tokens", "exits", "medusa", "hydra", "eagle1", "eagle3", "streams"}
    assert names >= {"draft4-streams", "draft4-streaming"}


def test_the_shipped_recipes_for_text_are_valid_and_name_nothing_twice():
    opened = load_text_recipe(FOLDER / "smollm2-135m-selfgen.yaml")
    assert isinstance(opened, SelfTextRecipe)
    assert len(set(opened.openers)) == len(opened.openers) > 90
    long = load_text_recipe(FOLDER / "smollm2-135m-passages.yaml")
    assert isinstance(long, PassageRecipe)
    assert len(set(long.templates)) == len(long.templates) > 15


@pytest.mark.parametrize(
    ("good", "old", "new", "message"),
    [
        (DRAFT, "kind: draft", "kind: horse", r"recipe.yaml:1:\d+: .*kind is 'horse'; it is one of 'draft', 'exit'"),
        (DRAFT, "source_layers: [1, 2]", "source_layers: []", r"recipe.yaml:2:\d+: .*source_layers"),
        (DRAFT, "[1, 2]", "[0, 2]", r"recipe.yaml:2:\d+: .*greater than or equal to 1, found 0"),
        (DRAFT, "feature_layer: 1", "feature_layer: 2", r"feature_layer 2 is outside 0\.\.1"),
        (
            DRAFT,
            "kind: draft",
            "kind: draft\nvocab_size: 2\nalways_kept: [0, 1, 2, 2]",
            "always_kept has 3 ids, but vocab_size is 2",
        ),
        (DRAFT, "num_tokens: 1000", "num_tokens: -5", r"recipe.yaml:6:\d+: .*greater than 0, found -5"),
        (DRAFT, "num_tokens: 1000", "num_tokens: '1000'", r"recipe.yaml:6:\d+: .*valid integer"),
        (DRAFT, "num_tokens: 1000", "tokens: 5", r"recipe.yaml:6:\d+: .*Extra inputs"),
        (
            PASSAGES,
            "kind: passages",
            "kind: draft",
            r"recipe.yaml:1:\d+: .*kind is 'draft'; it is one of 'selfgen', 'passages'",
        ),
        (PASSAGES, "[10, 20]", "[20, 10]", r"passage_tokens: 20 is more than 10"),
        (
            PASSAGES,
            "num_conversations: 5",
            "num_conversations: 5\nanswer_temperature: 1.0e-39",
            r"equal to 0.001, found 1e-39",
        ),
        (PASSAGES, "[10, 20]", "[0, 10]", r"recipe.yaml:3:\d+: .*greater than 0, found 0"),
        (PASSAGES, "Summarize: {passage}", "Summarize:", r"template 'Summarize:' has no {passage}"),
    ],
)
def test_a_wrong_recipe_is_answered_with_line_and_rule(tmp_path, good, old, new, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(good.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        (load_recipe if good == DRAFT else load_text_recipe)(path)


PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
HEADER = "| field | recipes of kind | default | meaning |\n| --- | --- | --- | --- |\n"
TABLES = [part.split("\n\n")[0] for part in PAGE.split(HEADER)[1:]]


def documented(table, kinds):
    """Defaults as the page writes them, by kind and field."""
    rows = [[cell.strip() for cell in re.split(r"\|", line)[1:-1]] for line in table.splitlines()]
    return {
        (kind, field.strip("`")): default
        for field, named, default, _ in rows
        for kind in (kinds if named == "all" else named.split(", "))
    }


def declared(models):
    """The same of the models."""
    return {(model.model_fields["kind"].default, name): shown for model in models for name, shown in fields(model, "")}


def fields(model, prefix):
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner, f"{name}.")
        else:
            required = field.default is PydanticUndefined or name == "kind"
            yield prefix + name, "" if required else written(field.default)


def written(default):
    if isinstance(default, tuple):
        return ", ".join(map(str, default)) or "none"
    return str(default)


@pytest.mark.parametrize(("table", "recipe"), [*zip(TABLES, (TrainingRecipe, TextRecipe), strict=True)])
def test_every_field_of_a_recipe_is_on_the_page(table, recipe):
    models = recipe.__args__
    kinds = [model.model_fields["kind"].default for model in models]
    assert documented(table, kinds) == declared(models)


def test_recipes_shown_on_the_page_are_valid():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        RecipeFile.model_validate(yaml.safe_load(block))


@pytest.mark.parametrize("layers", ["[2, 1]", "[2, 2]"])
def test_layers_that_are_read_together_are_in_the_order_in_which_they_come(layers, tmp_path):
    (tmp_path / "r.yaml").write_text(DRAFT.replace("exit_features: [2]", f"exit_features: {layers}"))
    with pytest.raises(ConfigError, match="layers are not in ascending order"):
        load_recipe(tmp_path / "r.yaml")
