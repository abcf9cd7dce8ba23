"""Trained Medusa heads and their tree on disk; the layout is that of `runtime.storage.head_folder`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import torch

from runtime.drafters.medusa.drafter import MedusaDrafter
from runtime.drafters.medusa.model import MedusaConfig, MedusaModel
from runtime.models.decoder import Decoder
from runtime.storage.head_folder import TreeFolderConfig, load_head, save_tree_heads
from runtime.storage.weight_folder import Count


class MedusaFolderConfig(TreeFolderConfig):
    """`config.json` of Medusa heads."""

    speculators_model_type: Literal["mirrorsd_medusa"] = "mirrorsd_medusa"
    num_heads: Count
    num_blocks: Count

    @property
    def depth(self) -> int:
        """Levels that the heads can draft."""
        return self.num_heads


save_medusa = partial(save_tree_heads, MedusaFolderConfig)
"""Write trained heads (`save_tree_heads`)."""


def load_medusa(folder: Path, target: Decoder, *, dtype: torch.dtype) -> MedusaDrafter:
    """Return the drafter of a folder of heads, in `dtype` and on the target's device."""

    def build(config: MedusaFolderConfig) -> MedusaModel:
        return MedusaModel(target.config.hidden_size, config.sizes(MedusaConfig))

    config, model, kept_ids = load_head(folder, MedusaFolderConfig, target, build, dtype=dtype)
    model.share(target, kept_ids)
    model.to(device=kept_ids.device, dtype=dtype)
    return MedusaDrafter(model, config.paths, num_layers=target.config.num_layers)
