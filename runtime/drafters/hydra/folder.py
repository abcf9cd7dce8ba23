"""Trained Hydra++ heads and their tree on disk; the layout is that of `runtime.storage.tree_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch

from decoding.tree_shape import Path as TreePath
from runtime.drafters.hydra.drafter import HydraDrafter
from runtime.drafters.hydra.model import HydraConfig, HydraModel
from runtime.models.decoder import Decoder
from runtime.storage.quantization import pack
from runtime.storage.tree_folder import TreeFolderConfig, load_tree
from runtime.storage.weight_folder import common_fields, save_folder, target_tensors

HYDRA_KIND: Final = "mirrorsd_hydra"


class HydraFolderConfig(TreeFolderConfig):
    """`config.json` of Hydra++ heads."""

    speculators_model_type: Literal["mirrorsd_hydra"] = HYDRA_KIND
    num_heads: int
    prefix_width: int
    head_width: int
    shared_widths: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Every head drafts a level."""
        return self.num_heads

    @property
    def hydra(self) -> HydraConfig:
        """What `HydraModel` is built from."""
        return HydraConfig(
            num_heads=self.num_heads,
            prefix_width=self.prefix_width,
            head_width=self.head_width,
            shared_widths=self.shared_widths,
            vocab_size=self.draft_vocab_size,
        )


def save_hydra(
    model: HydraModel,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    target: Decoder,
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write Hydra++ heads, trained for this target, and the nodes of their tree in order; matrices become int8.

    Older heads in the folder are replaced; for the other arguments see `runtime.storage.weight_folder.common_fields`.

    Raises:
        ModelError: the folder cannot be written.
    """
    sizes = model.config
    config = HydraFolderConfig(
        **common_fields(HYDRA_KIND, target.config, target_name, metadata),
        draft_vocab_size=sizes.vocab_size,
        num_heads=sizes.num_heads,
        prefix_width=sizes.prefix_width,
        head_width=sizes.head_width,
        shared_widths=sizes.shared_widths,
        paths=tuple(paths),
    )
    weights = dict(model.named_parameters())
    save_folder(folder, config, pack(weights) | target_tensors(target.embedding.weight, model.kept_ids))


def load_hydra(folder: Path, target: Decoder, *, dtype: torch.dtype) -> HydraDrafter:
    """What drafts with the heads of a folder, in `dtype` and on the target's device (errors: `load_tree`)."""

    def build(config: HydraFolderConfig) -> HydraModel:
        return HydraModel(target.config, config.hydra)

    config, model, kept_ids = load_tree(folder, HydraFolderConfig, target, build, dtype=dtype)
    model.share(target, kept_ids)
    model.to(device=kept_ids.device, dtype=dtype)
    return HydraDrafter(model, config.paths, num_layers=target.config.num_layers)
