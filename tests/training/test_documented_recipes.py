"""docs/training.md names every field of every recipe, with its default."""

import re
from pathlib import Path

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from training.recipe import RecipeFile, TextRecipe, TrainingRecipe

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


def test_every_field_of_a_training_recipe_is_on_the_page():
    models = TrainingRecipe.__args__
    kinds = [model.model_fields["kind"].default for model in models]
    assert documented(TABLES[0], kinds) == declared(models)


def test_every_field_of_a_recipe_for_text_is_on_the_page():
    models = TextRecipe.__args__
    kinds = [model.model_fields["kind"].default for model in models]
    assert documented(TABLES[1], kinds) == declared(models)


def test_recipes_shown_on_the_page_are_valid():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        RecipeFile.model_validate(yaml.safe_load(block))
