"""A `Decoder` of torch over the arrays of a Hugging Face folder (`runtime.storage.stored_decoder`)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from runtime.arrays import as_tensors, numpy_type
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary
from runtime.storage.stored_decoder import load_parameters


def load_decoder(
    folder: Path, *, dtype: torch.dtype, max_position: int | None = None, with_layers: bool = True
) -> Decoder:
    """Return a Hugging Face folder's decoder without gradients; arguments and errors are those of `load_parameters`."""
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = Decoder(config)
    if not with_layers:
        decoder.layers = nn.ModuleList()
    weights = as_tensors(load_parameters(folder, config, numpy_type(dtype), with_layers=with_layers))
    decoder.load_state_dict(weights, strict=False, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config, max_position or config.max_position)
    return decoder.eval().requires_grad_(requires_grad=False)
