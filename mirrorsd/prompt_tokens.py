"""Encodes prompts as token ids of the target, in its chat template if it has one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from calibrate.prompts import EncodedPrompt, Prompt
from decoding.errors import ModelError
from runtime.models.config import ModelConfig
from runtime.models.model_folder import has_random_weights
from runtime.models.tokenizer import Tokenizer, require_embedded

_CHARACTERS_PER_TOKEN: Final = 3
"""Measured on the shipped prompts in SmolLM2's chat template: 14,900 characters are 5,002 tokens."""


def num_tokens(prompts: Sequence[Prompt], target_folder: str | Path) -> tuple[int, ...]:
    """Return each prompt's number of tokens; estimated by characters for random weights, which have no tokenizer."""
    if has_random_weights(Path(target_folder)):
        return tuple(max(1, len(prompt.text) // _CHARACTERS_PER_TOKEN) for prompt in prompts)
    return tuple(len(prompt.ids) for prompt in encode(prompts, target_folder))


def encode(prompts: Sequence[Prompt], target_folder: str | Path) -> tuple[EncodedPrompt, ...]:
    """Return the first turn of each prompt as token ids of the target.

    Raises:
        ConfigError: a prompt has no tokens, or a token that the target has no embedding for.
        ModelError: the target has random weights, and thus no tokenizer.
        ModelFormatError: the target's tokenizer is missing or damaged.
    """
    if has_random_weights(Path(target_folder)):
        raise ModelError(
            f"{Path(target_folder).name} has random weights and cannot read prompts. `mirrorsd calibrate` can measure "
            "it, `search` and `simulate` take an assumed acceptance (--acceptance), and `run` replays one (--replay)"
        )
    tokenizer = Tokenizer.from_folder(Path(target_folder))
    return encode_with(tokenizer, prompts, ModelConfig.from_folder(Path(target_folder)).vocab_size)


def encode_with(tokenizer: Tokenizer, prompts: Sequence[Prompt], vocab_size: int) -> tuple[EncodedPrompt, ...]:
    """Do the same as `encode` with a loaded tokenizer; the target has `vocab_size` embeddings."""
    encoded = tuple(EncodedPrompt(one.prompt_id, one.category, _ids(one.text, tokenizer)) for one in prompts)
    for one in encoded:
        require_embedded(one.ids, tokenizer, vocab_size, f"prompt {one.name}: " if len(encoded) > 1 else "")
    return encoded


def _ids(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode(text))
    return tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))
