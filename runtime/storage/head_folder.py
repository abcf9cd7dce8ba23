"""Folders of heads and streams, modules of torch beside the target's own rows, in the layout of `weight_folder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from decoding.tree_shape import Path as TreePath
from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.drafters.trees import require_tree
from runtime.models.decoder import Decoder
from runtime.storage.weight_folder import CONFIG_FILE, FolderConfig, load_trained, save_trained

ROWS_OF_TARGET = ("embedding.weight", "lm_head.weight")
"""Parameters of heads that are rows of their target, and not stored."""


class TreeFolderConfig(FolderConfig):
    """`config.json` of weights with a tree; `paths` are its nodes, see `decoding.tree_shape`."""

    depth_field: ClassVar[str] = "num_heads"
    """The field that holds the levels that the weights can draft."""

    paths: Annotated[tuple[TreePath, ...], Field(max_length=4096)]

    @model_validator(mode="after")
    def _is_tree(self) -> Self:
        require_tree(self.paths, getattr(self, self.depth_field))
        return self


C = TypeVar("C", bound=FolderConfig)
D = TypeVar("D")
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T", bound=TreeFolderConfig)


def save_tree_heads(
    kind: type[TreeFolderConfig],
    heads: Any,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    target: Decoder,
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write heads, trained for this target, and the nodes of their tree (`FolderConfig.of`, `save_trained`)."""
    config = kind.of(target.config, target_name, metadata, **asdict(heads.config), paths=tuple(paths))
    weights = dict(heads.named_parameters())
    save_trained(folder, config, weights, embedding_VD=target.embedding.weight, kept_ids=heads.kept_ids)


def load_head(
    folder: Path, kind: type[C], target: Decoder, build: Callable[[C], M], *, dtype: torch.dtype
) -> tuple[C, M, Tensor]:
    """Return a folder's config, the frozen model that it describes, in `dtype`, and the target ids that it may propose.

    `build` makes the model on the meta device; parameters that are not made there are the target's. Raises `ModelError`
    for another target, `ModelFormatError` for a missing, damaged or contradictory file.
    """
    stored = load_trained(folder, kind, target)
    try:
        with torch.device("meta"):
            model = build(stored.config)
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
    own = {name: weight.shape for name, weight in model.named_parameters() if weight.is_meta}
    shapes = {name: shape for name, shape in own.items() if name not in ROWS_OF_TARGET}
    weights = as_tensors(stored.unpacked(shapes, numpy_type(dtype)))
    model.load_state_dict(weights, strict=False, assign=True)
    model.eval().requires_grad_(requires_grad=False)
    return stored.config, model, as_tensor(stored.kept_ids).to(target.embedding.weight.device)


def load_tree_heads(
    folder: Path,
    kind: type[T],
    target: Decoder,
    build: Callable[[T], Any],
    drafter: Callable[..., D],
    *,
    dtype: torch.dtype,
) -> D:
    """Return the drafter of a folder of heads and their tree, in `dtype` and on the target's device (`load_head`)."""
    config, model, kept_ids = load_head(folder, kind, target, build, dtype=dtype)
    model.share(target, kept_ids)
    model.to(device=kept_ids.device, dtype=dtype)
    return drafter(model, config.paths, num_layers=target.config.num_layers)
