"""Trained exit adapters on disk; the layout is that of `runtime.storage.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.storage.weight_folder import (
    EmbeddedTarget,
    FolderConfig,
    Layers,
    Width,
    load_trained,
    save_trained,
)

if TYPE_CHECKING:
    import torch

    from runtime.models.decoder import Decoder
    from runtime.target.exit_adapter import ExitAdapter


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitHeads:
    """Trained early exits of one target, as torch computes them.

    Attributes:
        adapters: by the layer the exit is taken after.
        kept_ids: target ids of the reduced vocabulary the adapters were trained on, ascending.
    """

    adapters: Mapping[int, ExitAdapter]
    kept_ids: torch.Tensor


class StoredExits(NamedTuple):
    """Trained early exits of one target as arrays, by their names in `ExitAdapter`."""

    adapters: dict[int, dict[str, NDArray[Any]]]
    kept_ids: NDArray[np.int64]


class ExitFolderConfig(FolderConfig):
    """`config.json` of exit adapters."""

    layer_fields = ("exit_layers",)

    speculators_model_type: Literal["mirrorsd_exits"] = "mirrorsd_exits"
    exit_layers: Layers
    width: Width


def save_exits(
    exits: ExitHeads, folder: Path, *, target: Decoder, target_name: str, metadata: Mapping[str, Any]
) -> None:
    """Write exit adapters of one width, trained for this target; see `FolderConfig.of`, `save_trained`."""
    layers = tuple(sorted(exits.adapters))
    config = ExitFolderConfig.of(
        target.config,
        target_name,
        metadata,
        draft_vocab_size=len(exits.kept_ids),
        exit_layers=layers,
        width=exits.adapters[layers[0]].up.out_features,
    )
    weights = {
        f"{layer}.{name}": weight for layer in layers for name, weight in exits.adapters[layer].named_parameters()
    }
    # affine maps stay near the identity: one scale per row would drown what lies off the diagonal
    affine = {f"{layer}.affine.weight" for layer in layers}
    save_trained(
        folder,
        config,
        weights,
        embedding_VD=target.embedding.weight,
        kept_ids=exits.kept_ids,
        unquantized=affine,
    )


def load_stored_exits(folder: Path, target: EmbeddedTarget, dtype: np.dtype[Any]) -> StoredExits:
    """Return the exit adapters of a folder as arrays in `dtype`.

    Raises:
        ModelError: they were trained for another target.
        ModelFormatError: a file is missing or damaged.
    """
    stored = load_trained(folder, ExitFolderConfig, target)
    size, width, layers = target.config.hidden_size, stored.config.width, stored.config.exit_layers
    shapes = {
        "affine.weight": (size, size),
        "affine.bias": (size,),
        "norm": (size,),
        "up.weight": (width, size),
        "down.weight": (size, width),
    }
    all_shapes = {f"{layer}.{name}": shape for layer in layers for name, shape in shapes.items()}
    found = stored.unpacked(all_shapes, dtype)
    adapters = {layer: {name: found[f"{layer}.{name}"] for name in shapes} for layer in layers}
    return StoredExits(adapters, stored.kept_ids)


def load_exits(folder: Path, target: Decoder, *, dtype: torch.dtype) -> ExitHeads:
    """Return the exit adapters of a folder in `dtype` on the target's device; raises what `load_stored_exits` does."""
    import torch

    from runtime.target.exit_adapter import ExitAdapter

    stored, device = load_stored_exits(folder, target, numpy_type(dtype)), target.embedding.weight.device

    def adapter_of(arrays: dict[str, NDArray[Any]]) -> ExitAdapter:
        with torch.device("meta"):
            adapter = ExitAdapter(target.config.hidden_size, len(arrays["up.weight"]), target.config.norm_eps)
        adapter.load_state_dict(as_tensors(arrays), assign=True)
        return adapter.to(device).eval().requires_grad_(requires_grad=False)

    adapters = {layer: adapter_of(arrays) for layer, arrays in stored.adapters.items()}
    return ExitHeads(adapters=adapters, kept_ids=as_tensor(stored.kept_ids).to(device))
