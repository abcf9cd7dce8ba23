"""Recipes for training text of the target's own, validated before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, RootModel, model_validator

from decoding.validation import Many, Pair
from decoding.yaml_file import load_yaml
from training.recipe import MOST, RecipeFields

PASSAGE = "{passage}"
QUESTION = "{question}"
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(gt=0, le=MOST)]
_Temperature = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class _AnswerRecipe(RecipeFields):
    """How the target answers: `greedy_share` of the answers at temperature 0; prompts are distinct."""

    num_conversations: _Count
    greedy_share: Annotated[float, Field(ge=0, le=1)] = 0.64
    answer_temperature: _Temperature = 0.8
    answer_top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_answer_tokens: _Count = 224
    batch_size: _Count = 96
    seed: Annotated[int, Field(ge=0, le=MOST)] = 0


class SelfTextRecipe(_AnswerRecipe):
    """User turns that the target continues from openers, up to `max_user_tokens` more."""

    kind: Literal["selfgen"] = "selfgen"
    openers: Annotated[Many[_Text], Field(min_length=1)]
    user_temperature: _Temperature = 0.9
    user_top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_user_tokens: _Count = 96


class PassageRecipe(_AnswerRecipe):
    """Long user turns: requests about passages, which are answers of conversations that are there already.

    `{passage}` in a template stands for whole answers, added until there are `passage_tokens` (least and most);
    `{question}` for the user turn that one of them answered.
    """

    kind: Literal["passages"] = "passages"
    templates: Annotated[Many[_Text], Field(min_length=1)]
    passage_tokens: Pair[_Count]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        without = [template for template in self.templates if PASSAGE not in template]
        if without:
            raise ValueError(f"template {without[0]!r} has no {PASSAGE}")
        least, most = self.passage_tokens
        if least > most:
            raise ValueError(f"passage_tokens: {least} is more than {most}")
        return self


TextRecipe = SelfTextRecipe | PassageRecipe


class TextRecipeFile(RootModel[Annotated[TextRecipe, Field(discriminator="kind")]]):
    """A recipe for text of either kind, as a YAML file holds it."""


def load_text_recipe(path: Path) -> TextRecipe:
    """Read a recipe for text (errors: `decoding.yaml_file.load_yaml`)."""
    return load_yaml(path, TextRecipeFile).root
