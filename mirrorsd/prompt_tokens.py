"""Prompts as the target reads them: in its chat template, or as they are where a model has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrate.prompts import EncodedPrompt, Prompt
    from runtime.models.tokenizer import Tokenizer


def encode(prompts: Sequence[Prompt], target_folder: str | Path) -> tuple[EncodedPrompt, ...]:
    """The first turn of each prompt, as token ids of the target.

    Raises:
        ModelFormatError: the target's tokenizer is missing or damaged.
    """
    from runtime.models.tokenizer import Tokenizer

    return encode_with(Tokenizer.from_folder(Path(target_folder)), prompts)


def encode_with(tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> tuple[EncodedPrompt, ...]:
    """`encode` with a tokenizer at hand."""
    from calibrate.prompts import encode_prompts

    return encode_prompts(prompts, tokenizer if tokenizer.has_chat_template else _Plain(tokenizer))


class _Plain:
    """Reads a conversation as mere text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode_chat(self, messages: Sequence[Mapping[str, str]], /) -> list[int]:
        return self._tokenizer.encode("\n\n".join(message["content"] for message in messages))
