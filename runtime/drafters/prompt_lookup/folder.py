"""The settings of prompt lookup on disk: a `config.json` and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from runtime.drafters.prompt_lookup.drafter import PromptLookupDrafter
from runtime.storage.weight_folder import Strict, read_config

PROMPT_LOOKUP_KIND: Final = "mirrorsd_prompt_lookup"
NumTokens = Annotated[int, Field(ge=1, le=16)]


class PromptLookupConfig(Strict):
    """`config.json` of prompt lookup.

    Attributes:
        min_ngram, max_ngram: tokens at the end of the text that have to occur before: the fewest, and the most asked
            for.
    """

    speculators_model_type: Literal["mirrorsd_prompt_lookup"] = PROMPT_LOOKUP_KIND
    min_ngram: NumTokens
    max_ngram: NumTokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram is {self.min_ngram}, more than max_ngram {self.max_ngram}")
        return self


def load_prompt_lookup(folder: Path) -> PromptLookupDrafter:
    """The drafter of a folder."""
    config = read_config(folder, PromptLookupConfig, "prompt lookup comes with one")
    return PromptLookupDrafter(min_ngram=config.min_ngram, max_ngram=config.max_ngram)
