"""Trained EAGLE heads on disk; the layout is that of `runtime.storage.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.eagle.model import Eagle1, Eagle3, EagleHead
from runtime.models.decoder import Decoder, Rotary
from runtime.storage.quantization import pack, unpack
from runtime.storage.weight_folder import (
    WEIGHTS_FILE,
    FolderConfig,
    Layers,
    load_folder,
    require_layers,
    save_folder,
    take_kept_ids,
    target_tensors,
)

_OF_THE_TARGET = ("embedding.weight", "lm_head.weight")


class Eagle1FolderConfig(FolderConfig):
    """`config.json` of an EAGLE-1 head."""

    speculators_model_type: Literal["mirrorsd_eagle1"] = "mirrorsd_eagle1"


class Eagle3FolderConfig(FolderConfig):
    """`config.json` of an EAGLE-3 head; `feature_layers` are the target layers it reads."""

    speculators_model_type: Literal["mirrorsd_eagle3"] = "mirrorsd_eagle3"
    feature_layers: Layers


def save_eagle(
    head: EagleHead,
    folder: Path,
    *,
    feature_layers: Sequence[int],
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write a head whose embedding and output rows are its target's; see `FolderConfig.of`, `save_folder`.

    `feature_layers` are the target layers that an EAGLE-3 head reads.
    """
    kind = Eagle3FolderConfig if isinstance(head, Eagle3) else Eagle1FolderConfig
    own = {"feature_layers": tuple(feature_layers)} if isinstance(head, Eagle3) else {}
    config = kind.of(head.config, target_name, metadata, draft_vocab_size=len(head.kept_ids), **own)
    weights = {name: weight for name, weight in head.named_parameters() if name not in _OF_THE_TARGET}
    save_folder(folder, config, pack(weights) | target_tensors(head.embedding.weight, head.kept_ids))


def load_eagle1(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """What drafts for EAGLE-2's trees from the folder of an EAGLE-1 head, sharing the target's rows."""
    config, tensors = load_folder(folder, Eagle1FolderConfig)
    with torch.device("meta"):
        head = Eagle1(target.config, config.draft_vocab_size)
    head.target_norm = target.final_norm.detach().to(dtype)
    _fill(head, config, tensors, target, folder, dtype)
    return EagleDrafter(head, method="eagle2", feature_layers=(target.config.num_layers,))


def load_eagle3(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """What drafts from the folder of an EAGLE-3 head, sharing the target's rows."""
    config, tensors = load_folder(folder, Eagle3FolderConfig)
    require_layers(config.feature_layers, target, "feature_layers", folder)
    with torch.device("meta"):
        head = Eagle3(target.config, config.draft_vocab_size, len(config.feature_layers))
    _fill(head, config, tensors, target, folder, dtype)
    return EagleDrafter(head, method="eagle3", feature_layers=config.feature_layers)


def _fill(
    head: EagleHead,
    config: FolderConfig,
    tensors: dict[str, NDArray[Any]],
    target: Decoder,
    folder: Path,
    dtype: torch.dtype,
) -> None:
    """Give a head on the meta device its weights, and the target's rows."""
    kept_ids = as_tensor(take_kept_ids(tensors, config, target, folder))
    shapes = {name: weight.shape for name, weight in head.named_parameters() if name not in _OF_THE_TARGET}
    weights = unpack(tensors, shapes, numpy_type(dtype), source=str(folder / WEIGHTS_FILE))
    head.load_state_dict(as_tensors(weights), strict=False, assign=True)
    head_VD = target.lm_head.weight.detach()
    head.share(target.embedding.weight.to(dtype), head_VD[kept_ids].to(dtype), kept_ids, target_head_VD=head_VD)
    head.rotary = Rotary(target.config, len(target.rotary.cos_PH))
    head.to(target.embedding.weight.device).eval().requires_grad_(requires_grad=False)
