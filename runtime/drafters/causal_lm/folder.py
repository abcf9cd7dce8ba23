"""The Hugging Face folder of a standalone draft model, which has only its tokenizer in common with the target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.errors import ModelError
from runtime.drafters.language_model.draft_passes import DraftConfig, StoredDraft
from runtime.drafters.language_model.drafter import Drafter
from runtime.models.config import ModelConfig
from runtime.models.tokenizer import Tokenizer
from runtime.models.vocabulary import OutputRows
from runtime.storage.shape_folder import has_random_weights
from runtime.storage.stored_decoder import load_stored_decoder

if TYPE_CHECKING:
    import torch

    from runtime.drafters.language_model.model import DraftModel
    from runtime.models.decoder import Decoder


def load_causal_lm(folder: Path, target_folder: Path, *, dtype: torch.dtype) -> Drafter:
    """Return the drafter of a standalone model with the target's tokenizer; random weights need no tokenizer."""
    from runtime.models.weights import load_decoder

    _require_fit(folder, target_folder)
    return Drafter(as_draft(load_decoder(folder, dtype=dtype), ModelConfig.from_folder(target_folder).vocab_size))


def load_stored_causal_lm(folder: Path, target_folder: Path, dtype: np.dtype[Any]) -> StoredDraft:
    """Return the model of a folder as arrays, for compiled lanes."""
    _require_fit(folder, target_folder)
    decoder = load_stored_decoder(folder, dtype)
    config = _draft_config(decoder.config, ModelConfig.from_folder(target_folder).vocab_size)
    return StoredDraft(
        decoder, config, OutputRows(np.arange(config.vocab_size), decoder.lm_head.weight[: config.vocab_size])
    )


def as_draft(decoder: Decoder, target_vocab_size: int) -> DraftModel:
    """Return a decoder as a draft model that shares its weights; ids beyond the target's are not proposed."""
    import torch

    from runtime.drafters.language_model.model import DraftModel

    config = _draft_config(decoder.config, target_vocab_size)
    with torch.device("meta"):
        draft = DraftModel(decoder.config, config)
    draft.decoder = decoder
    draft.kept_ids = torch.arange(config.vocab_size, device=decoder.lm_head.weight.device)
    draft.output = OutputRows(draft.kept_ids, decoder.lm_head.weight.detach()[: config.vocab_size])
    return draft.eval().requires_grad_(requires_grad=False)


def _draft_config(config: ModelConfig, target_vocab_size: int) -> DraftConfig:
    layers = tuple(range(1, config.num_layers + 1))
    return DraftConfig(source_layers=layers, vocab_size=min(config.vocab_size, target_vocab_size))


def _require_fit(folder: Path, target_folder: Path) -> None:
    if not has_random_weights(folder) and not has_random_weights(target_folder):
        require_same_tokenizer(folder, target_folder)


def require_same_tokenizer(draft_folder: Path, target_folder: Path) -> None:
    """Refuse a draft whose tokenizer gives other ids than the target's, token by token.

    Raises:
        ModelError: names the first id at which they differ, and both tokens.
        ModelFormatError: a tokenizer is missing or damaged.
    """
    draft, target = (Tokenizer.from_folder(folder).tokens() for folder in (draft_folder, target_folder))
    for token_id in sorted(draft.keys() | target.keys()):
        ours, theirs = draft.get(token_id), target.get(token_id)
        if ours != theirs:
            raise ModelError(
                f"{draft_folder}: cannot draft for {target_folder}: their tokenizers differ, first at id {token_id}, "
                f"which is {_called(ours)} for the draft and {_called(theirs)} for the target"
            )


def _called(token: str | None) -> str:
    return "no token" if token is None else repr(token)
