"""Training text from a target's folder; what is said and how is the business of `training.generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder
from training.generate import generate_conversations
from training.recipe import SelfTextRecipe
from training.run import usable_device


def write_self_text(
    recipe: SelfTextRecipe,
    target_folder: Path,
    path: Path,
    *,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Load the target in bfloat16 and let it write `path`, or go on doing so.

    Raises:
        TrainingError: there is no such device, or as `training.generate.generate_conversations`.
        ModelError: the target cannot be loaded.
    """
    target = load_decoder(target_folder, dtype=torch.bfloat16).to(usable_device(device))
    tokenizer = Tokenizer.from_folder(target_folder)
    generate_conversations(recipe, target, tokenizer, path, target_name=target_folder.name, progress=progress)
