"""Trained Medusa heads and their tree on disk; the layout is that of `runtime.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch

from decoding.errors import ModelError, ModelFormatError
from decoding.tree_shape import Path as TreePath
from runtime.decoder import Decoder
from runtime.medusa_drafter import MedusaDrafter
from runtime.medusa_model import MedusaConfig, MedusaModel
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

MEDUSA_KIND: Final = "mirrorsd_medusa"


class MedusaFolderConfig(FolderConfig):
    """`config.json` of Medusa heads; `paths` are the nodes of the tree, see `decoding.tree_shape`."""

    speculators_model_type: Literal["mirrorsd_medusa"] = MEDUSA_KIND
    num_heads: int
    num_blocks: int
    paths: tuple[TreePath, ...]

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
    """Write Medusa heads and their tree; matrices become int8.

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
    config = MedusaFolderConfig(
        speculators_config=SpeculatorsConfig(algorithm=MEDUSA_KIND, verifier=Verifier(name_or_path=target_name)),
        target_shape=TargetShape.of(target.config),
        draft_vocab_size=model.config.vocab_size,
        num_heads=model.config.num_heads,
        num_blocks=model.config.num_blocks,
        paths=tuple(paths),
        metadata=dict(metadata),
    )
    weights = dict(model.named_parameters())
    save_folder(folder, config, pack(weights) | target_tensors(target.embedding.weight, model.kept_ids))


def load_medusa(folder: Path, target: Decoder, *, dtype: torch.dtype) -> MedusaDrafter:
    """The heads of a folder in `dtype`, and what drafts with them, on the target's device.

    Raises:
        ModelError: the target is not the one the heads were trained for.
        ModelFormatError: a file is missing, damaged, or of another kind.
    """
    config, tensors = load_folder(folder, MedusaFolderConfig)
    kept_ids = take_kept_ids(tensors, config, target, folder)
    path = folder / CONFIG_FILE
    require_tree(config.paths, config.num_heads, source=str(path))
    try:
        own_config = config.medusa
    except ModelError as error:
        msg = f"{path}: {error}"
        raise ModelFormatError(msg) from error
    with torch.device("meta"):
        model = MedusaModel(target.config.hidden_size, own_config)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    model.load_state_dict(unpack(tensors, shapes, dtype, source=str(folder / WEIGHTS_FILE)), assign=True)
    device = target.embedding.weight.device
    model.share(target, kept_ids.to(device))
    model.to(device=device, dtype=dtype).eval().requires_grad_(requires_grad=False)
    return MedusaDrafter(model, config.paths, num_layers=target.config.num_layers)
