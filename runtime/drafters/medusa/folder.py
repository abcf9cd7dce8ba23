"""Trained Medusa heads and their tree on disk; the layout is that of `runtime.storage.tree_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch

from decoding.tree_shape import Path as TreePath
from runtime.drafters.medusa.drafter import MedusaDrafter
from runtime.drafters.medusa.model import MedusaConfig, MedusaModel
from runtime.models.decoder import Decoder
from runtime.storage.quantization import pack
from runtime.storage.tree_folder import TreeFolderConfig, load_tree
from runtime.storage.weight_folder import common_fields, save_folder, target_tensors

MEDUSA_KIND: Final = "mirrorsd_medusa"


class MedusaFolderConfig(TreeFolderConfig):
    """`config.json` of Medusa heads."""

    speculators_model_type: Literal["mirrorsd_medusa"] = MEDUSA_KIND
    num_heads: int
    num_blocks: int

    @property
    def depth(self) -> int:
        """Every head drafts a level."""
        return self.num_heads

    @property
    def medusa(self) -> MedusaConfig:
        """What `MedusaModel` is built from."""
        return MedusaConfig(num_heads=self.num_heads, num_blocks=self.num_blocks, vocab_size=self.draft_vocab_size)


def save_medusa(
    model: MedusaModel,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    target: Decoder,
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write Medusa heads, trained for this target, and the nodes of their tree in order; matrices become int8.

    Older heads in the folder are replaced; for the other arguments see `runtime.storage.weight_folder.common_fields`.

    Raises:
        ModelError: the folder cannot be written.
    """
    config = MedusaFolderConfig(
        **common_fields(MEDUSA_KIND, target.config, target_name, metadata),
        draft_vocab_size=model.config.vocab_size,
        num_heads=model.config.num_heads,
        num_blocks=model.config.num_blocks,
        paths=tuple(paths),
    )
    weights = dict(model.named_parameters())
    save_folder(folder, config, pack(weights) | target_tensors(target.embedding.weight, model.kept_ids))


def load_medusa(folder: Path, target: Decoder, *, dtype: torch.dtype) -> MedusaDrafter:
    """What drafts with the heads of a folder, in `dtype` and on the target's device (errors: `load_tree`)."""

    def build(config: MedusaFolderConfig) -> MedusaModel:
        return MedusaModel(target.config.hidden_size, config.medusa)

    config, model, kept_ids = load_tree(folder, MedusaFolderConfig, target, build, dtype=dtype)
    model.share(target, kept_ids)
    model.to(device=kept_ids.device, dtype=dtype)
    return MedusaDrafter(model, config.paths, num_layers=target.config.num_layers)
