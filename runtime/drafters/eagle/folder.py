"""Trained EAGLE heads on disk; the layout is that of `runtime.storage.head_folder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.eagle.model import Eagle1, Eagle3, EagleHead
from runtime.models.decoder import Decoder, Rotary
from runtime.storage.head_folder import ROWS_OF_TARGET, load_head
from runtime.storage.weight_folder import FolderConfig, Layers, save_trained

C = TypeVar("C", bound=FolderConfig)
H = TypeVar("H", bound=EagleHead)


class Eagle1FolderConfig(FolderConfig):
    """`config.json` of an EAGLE-1 head."""

    speculators_model_type: Literal["mirrorsd_eagle1"] = "mirrorsd_eagle1"


class Eagle3FolderConfig(FolderConfig):
    """`config.json` of an EAGLE-3 head; `feature_layers` are the target layers it reads."""

    layer_fields = ("feature_layers",)

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
    """Write a head whose embedding and output rows are its target's; see `FolderConfig.of`, `save_trained`.

    `feature_layers` are the target layers that an EAGLE-3 head reads.
    """
    kind = Eagle3FolderConfig if isinstance(head, Eagle3) else Eagle1FolderConfig
    own = {"feature_layers": tuple(feature_layers)} if isinstance(head, Eagle3) else {}
    config = kind.of(head.config, target_name, metadata, draft_vocab_size=len(head.kept_ids), **own)
    weights = {name: weight for name, weight in head.named_parameters() if name not in ROWS_OF_TARGET}
    save_trained(folder, config, weights, embedding_VD=head.embedding.weight, kept_ids=head.kept_ids)


def load_eagle1(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """Return the drafter of EAGLE-2's trees from the folder of an EAGLE-1 head, which shares the target's rows."""

    def build(config: Eagle1FolderConfig) -> Eagle1:
        head = Eagle1(target.config, config.draft_vocab_size)
        head.target_norm = target.final_norm.detach().to(dtype)
        return head

    _, head = _load(folder, Eagle1FolderConfig, target, build, dtype)
    return EagleDrafter(head, method="eagle2", feature_layers=(target.config.num_layers,))


def load_eagle3(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """Return the drafter of the folder of an EAGLE-3 head, which shares the target's rows."""

    def build(config: Eagle3FolderConfig) -> Eagle3:
        return Eagle3(target.config, config.draft_vocab_size, len(config.feature_layers))

    config, head = _load(folder, Eagle3FolderConfig, target, build, dtype)
    return EagleDrafter(head, method="eagle3", feature_layers=config.feature_layers)


def _load(folder: Path, kind: type[C], target: Decoder, build: Callable[[C], H], dtype: torch.dtype) -> tuple[C, H]:
    """Return a head with its weights and the target's rows, on the target's device."""
    config, head, kept_ids = load_head(folder, kind, target, build, dtype=dtype)
    head_VD = target.lm_head.weight.detach()
    head.share(target.embedding.weight.to(dtype), head_VD[kept_ids].to(dtype), kept_ids, target_head_VD=head_VD)
    head.rotary = Rotary(target.config, len(target.rotary.cos_PH))
    return config, head.to(kept_ids.device)
