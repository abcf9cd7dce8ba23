"""Read a Hugging Face folder's safetensors into a `Decoder` of torch; the files are mapped (`runtime.storage`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from runtime.arrays import as_tensors, numpy_type
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary
from runtime.models.random_weights import fill_at_random
from runtime.storage.decoder_names import decoder_tensors
from runtime.storage.joined_arrays import joined_parameters
from runtime.storage.safetensors_files import read_arrays


def load_decoder(
    folder: Path,
    *,
    dtype: torch.dtype,
    max_position: int | None = None,
    with_layers: bool = True,
) -> Decoder:
    """The decoder of a Hugging Face folder, weights in `dtype`, in evaluation mode without gradients.

    Of a folder that asks for random weights they are made here (`runtime.models.random_weights`).

    `with_layers=False` reads the embedding, the final norm and the output head only: what a draft shares with it.

    Raises:
        ModelError: a file is missing or truncated, a tensor is missing, has the wrong shape, or numbers that are not
            finite.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = Decoder(config)
    if not with_layers:
        decoder.layers = nn.ModuleList()
    if config.random_seed is None:
        wanted = decoder_tensors(config if with_layers else replace(config, num_layers=0))
        found = read_arrays(folder, {name for names in wanted.values() for name in names})
        fill(decoder, wanted, found, dtype, folder=folder)
    else:
        fill_at_random(decoder, config.random_seed, dtype)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embedding.weight
    decoder.rotary = Rotary(config, max_position or config.max_position)
    return decoder.eval().requires_grad_(requires_grad=False)


def fill(
    decoder: nn.Module,
    wanted: Mapping[str, tuple[str, ...]],
    found: Mapping[str, NDArray[Any]],
    dtype: torch.dtype,
    *,
    folder: Path,
    device: str = "cpu",
) -> None:
    """Give a decoder on the meta device its weights.

    Args:
        decoder: whole, or one rank's share.
        wanted: for each of its parameters the tensors that go into it, in their order.
        found: those tensors, by name.
        dtype: of the weights.
        folder: where they are from.
        device: where the weights are wanted.

    Raises:
        ModelError: a tensor is missing, or as in `joined`.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters(remove_duplicate=False)}
    shapes = {name: shapes[name] for name in wanted}
    state = as_tensors(joined_parameters(wanted, shapes, found, numpy_type(dtype), folder=folder))
    decoder.load_state_dict({name: weight.to(device) for name, weight in state.items()}, strict=False, assign=True)
