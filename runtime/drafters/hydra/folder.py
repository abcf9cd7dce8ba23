"""Trained Hydra++ heads and their tree on disk; the layout is that of `runtime.storage.head_folder`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field

from runtime.drafters.hydra.drafter import HydraDrafter
from runtime.drafters.hydra.model import HydraConfig, HydraModel
from runtime.models.decoder import Decoder
from runtime.storage.head_folder import TreeFolderConfig, load_head, save_tree_heads
from runtime.storage.weight_folder import Count, Width


class HydraFolderConfig(TreeFolderConfig):
    """`config.json` of Hydra++ heads."""

    speculators_model_type: Literal["mirrorsd_hydra"] = "mirrorsd_hydra"
    num_heads: Count
    prefix_width: Width
    head_width: Width
    shared_widths: Annotated[tuple[Width, ...], Field(max_length=64)]

    @property
    def depth(self) -> int:
        """Levels that the heads can draft."""
        return self.num_heads


save_hydra = partial(save_tree_heads, HydraFolderConfig)
"""Write trained heads (`save_tree_heads`)."""


def load_hydra(folder: Path, target: Decoder, *, dtype: torch.dtype) -> HydraDrafter:
    """Return the drafter of a folder of heads, in `dtype` and on the target's device."""

    def build(config: HydraFolderConfig) -> HydraModel:
        return HydraModel(target.config, config.sizes(HydraConfig))

    config, model, kept_ids = load_head(folder, HydraFolderConfig, target, build, dtype=dtype)
    model.share(target, kept_ids)
    model.to(device=kept_ids.device, dtype=dtype)
    return HydraDrafter(model, config.paths, num_layers=target.config.num_layers)
