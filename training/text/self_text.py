"""Training text from a target's folder; what is written and how: `training.text.generate_text`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from decoding.progress import ReportCount
from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder
from training.data.conversations import read_conversations
from training.run import usable_device
from training.text.generate_text import generate_conversations
from training.text.text_recipe import TextRecipe


def write_self_text(
    recipe: TextRecipe,
    target_folder: Path,
    path: Path,
    *,
    sources: Sequence[Path] = (),
    device: str = "cpu",
    progress: ReportCount = lambda _done, _total: None,
) -> None:
    """Load the target in bfloat16 and let it write `path`, or go on doing so.

    Args:
        recipe: what is written and how.
        target_folder: of the target that writes it.
        path: the token file.
        sources: token files that passages are taken from, where the recipe wants passages.
        device: where to compute.
        progress: called after each batch with conversations done and wanted.

    Raises:
        TrainingError: there is no such device, or as `training.text.generate_text.generate_conversations`.
        ModelError: the target cannot be loaded.
    """
    target = load_decoder(target_folder, dtype=torch.bfloat16).to(usable_device(device))
    tokenizer = Tokenizer.from_folder(target_folder)
    conversations = read_conversations(sources, vocab_size=target.config.vocab_size) if sources else ()
    generate_conversations(
        recipe, target, tokenizer, path, target_name=target_folder.name, sources=conversations, progress=progress
    )
