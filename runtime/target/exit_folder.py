"""Trained exit adapters on disk; the layout is that of `runtime.storage.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from runtime.models.decoder import Decoder
from runtime.storage.quantization import pack, unpack
from runtime.storage.weight_folder import (
    WEIGHTS_FILE,
    FolderConfig,
    Layers,
    Width,
    load_folder,
    require_layers,
    save_folder,
    take_kept_ids,
    target_tensors,
)
from runtime.target.exit_adapter import ExitAdapter


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitHeads:
    """Trained early exits of one target.

    Attributes:
        adapters: by the layer the exit is taken after.
        kept_ids: target ids of the reduced vocabulary the adapters were trained on, ascending.
    """

    adapters: Mapping[int, ExitAdapter]
    kept_ids: Tensor


class ExitFolderConfig(FolderConfig):
    """`config.json` of exit adapters."""

    speculators_model_type: Literal["mirrorsd_exits"] = "mirrorsd_exits"
    exit_layers: Layers
    width: Width


def save_exits(
    exits: ExitHeads, folder: Path, *, target: Decoder, target_name: str, metadata: Mapping[str, Any]
) -> None:
    """Write exit adapters of one width, trained for this target; see `FolderConfig.of`, `save_folder`."""
    layers = tuple(sorted(exits.adapters))
    config = ExitFolderConfig.of(
        target.config,
        target_name,
        metadata,
        draft_vocab_size=len(exits.kept_ids),
        exit_layers=layers,
        width=exits.adapters[layers[0]].up.out_features,
    )
    weights = dict(_by_layer(exits.adapters).named_parameters())
    packed = pack(weights, unquantized=_affine_names(layers))
    save_folder(folder, config, packed | target_tensors(target.embedding.weight, exits.kept_ids))


def load_exits(folder: Path, target: Decoder, *, dtype: torch.dtype) -> ExitHeads:
    """The exit adapters of a folder in `dtype` on the target's device."""
    config, tensors = load_folder(folder, ExitFolderConfig)
    require_layers(config.exit_layers, target, "exit_layers", folder)
    kept_ids = take_kept_ids(tensors, config, target, folder)
    sizes = target.config.hidden_size, config.width, target.config.norm_eps
    with torch.device("meta"):
        adapters = {layer: ExitAdapter(*sizes) for layer in config.exit_layers}
    module = _by_layer(adapters)
    shapes = {name: weight.shape for name, weight in module.named_parameters()}
    state = unpack(tensors, shapes, dtype, source=str(folder / WEIGHTS_FILE))
    module.load_state_dict(state, assign=True)
    device = target.embedding.weight.device
    module.to(device).eval().requires_grad_(requires_grad=False)
    return ExitHeads(adapters=adapters, kept_ids=kept_ids.to(device))


def _by_layer(adapters: Mapping[int, ExitAdapter]) -> nn.ModuleDict:
    return nn.ModuleDict({str(layer): adapters[layer] for layer in sorted(adapters)})


def _affine_names(layers: tuple[int, ...]) -> set[str]:
    """The affine maps stay near the identity: one scale per row would drown what lies off the diagonal."""
    return {f"{layer}.affine.weight" for layer in layers}
