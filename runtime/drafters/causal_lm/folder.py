"""The Hugging Face folder of a model of its own as a draft: nothing of the target's is in it but the tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch

from runtime.drafters.causal_lm.same_tokenizer import require_same_tokenizer
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.model import DraftConfig, DraftModel
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.models.vocabulary import OutputRows
from runtime.models.weights import load_decoder


def load_causal_lm(folder: Path, target_folder: Path, *, dtype: torch.dtype) -> Drafter:
    """What drafts for a target with the model of a folder.

    Raises:
        ModelError: a file is missing or damaged, the model is of an unsupported family, or its tokenizer gives other
            ids than the target's.
    """
    require_same_tokenizer(folder, target_folder)
    return Drafter(as_draft(load_decoder(folder, dtype=dtype), ModelConfig.from_folder(target_folder).vocab_size))


def as_draft(decoder: Decoder, target_vocab_size: int) -> DraftModel:
    """A whole decoder as a draft model, its weights shared. Rows that only fill up a vocabulary are not proposed."""
    config, vocab_size = decoder.config, min(decoder.config.vocab_size, target_vocab_size)
    with torch.device("meta"):
        draft = DraftModel(
            config, DraftConfig(source_layers=tuple(range(1, config.num_layers + 1)), vocab_size=vocab_size)
        )
    draft.decoder = decoder
    draft.kept_ids = torch.arange(vocab_size, device=decoder.lm_head.weight.device)
    draft.output = OutputRows(draft.kept_ids, decoder.lm_head.weight.detach()[:vocab_size])
    return draft.eval().requires_grad_(requires_grad=False)
