"""Trained Hydra++ heads and their tree on disk; the layout is that of `runtime.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch

from decoding.errors import ModelError, ModelFormatError
from decoding.tree_shape import Path as TreePath
from runtime.decoder import Decoder
from runtime.hydra_drafter import HydraDrafter
from runtime.hydra_model import HydraConfig, HydraModel
from runtime.quantization import pack, unpack
from runtime.static_tree import require_tree
from runtime.weight_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    FolderConfig,
    SpeculatorsConfig,
    TargetShape,
    Verifier,
    load_folder,
    save_folder,
    take_kept_ids,
    target_tensors,
)

HYDRA_KIND: Final = "mirrorsd_hydra"


class HydraFolderConfig(FolderConfig):
    """`config.json` of Hydra++ heads; `paths` are the nodes of the tree, see `decoding.tree_shape`."""

    speculators_model_type: Literal["mirrorsd_hydra"] = HYDRA_KIND
    num_heads: int
    prefix_width: int
    head_width: int
    shared_widths: tuple[int, ...]
    paths: tuple[TreePath, ...]

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
    """Write Hydra++ heads and their tree; matrices become int8.

    Args:
        model: the trained heads.
        paths: nodes of the tree in their order.
        folder: created if it is not there; older heads in it are replaced.
        target: the target they were trained for.
        target_name: what a user calls the target.
        metadata: anything JSON can hold: how they were trained.

    Raises:
        ModelError: the folder cannot be written.
    """
    config = HydraFolderConfig(
        speculators_config=SpeculatorsConfig(algorithm=HYDRA_KIND, verifier=Verifier(name_or_path=target_name)),
        target_shape=TargetShape.of(target.config),
        draft_vocab_size=model.config.vocab_size,
        num_heads=model.config.num_heads,
        prefix_width=model.config.prefix_width,
        head_width=model.config.head_width,
        shared_widths=model.config.shared_widths,
        paths=tuple(paths),
        metadata=dict(metadata),
    )
    weights = dict(model.named_parameters())
    save_folder(folder, config, pack(weights) | target_tensors(target.embedding.weight, model.kept_ids))


def load_hydra(folder: Path, target: Decoder, *, dtype: torch.dtype) -> HydraDrafter:
    """The heads of a folder in `dtype`, and what drafts with them, on the target's device.

    Raises:
        ModelError: the target is not the one the heads were trained for.
        ModelFormatError: a file is missing, damaged, or of another kind.
    """
    config, tensors = load_folder(folder, HydraFolderConfig)
    kept_ids = take_kept_ids(tensors, config, target, folder)
    path = folder / CONFIG_FILE
    require_tree(config.paths, config.num_heads, source=str(path))
    try:
        own_config = config.hydra
    except ModelError as error:
        msg = f"{path}: {error}"
        raise ModelFormatError(msg) from error
    with torch.device("meta"):
        model = HydraModel(target.config, own_config)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    model.load_state_dict(unpack(tensors, shapes, dtype, source=str(folder / WEIGHTS_FILE)), assign=True)
    device = target.embedding.weight.device
    model.share(target, kept_ids.to(device))
    model.to(device=device, dtype=dtype).eval().requires_grad_(requires_grad=False)
    return HydraDrafter(model, config.paths, num_layers=target.config.num_layers)
