"""Folders of trained weights that draft the same tree at every step; the layout is that of `weight_folder`.

What the weights are is the business of `runtime.drafters.medusa.folder`, `runtime.drafters.hydra.folder` and
`runtime.drafters.streams.folder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from decoding.tree_shape import Path as TreePath
from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.models.decoder import Decoder
from runtime.storage.quantization import pack, unpack
from runtime.storage.weight_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    FolderConfig,
    load_folder,
    save_folder,
    take_kept_ids,
    target_tensors,
)
from runtime.trees.static_tree import require_tree


class TreeFolderConfig(FolderConfig):
    """`config.json` of weights with a tree; `paths` are its nodes, see `decoding.tree_shape`."""

    paths: Annotated[tuple[TreePath, ...], Field(max_length=4096)]


C = TypeVar("C", bound=TreeFolderConfig)
M = TypeVar("M", bound=nn.Module)


class Heads(Protocol):
    """Trained heads of either kind."""

    @property
    def config(self) -> Any:
        """Their sizes, a dataclass."""
        ...

    @property
    def kept_ids(self) -> Tensor:
        """Target ids that they may guess, ascending."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """What was trained."""
        ...


def save_heads(
    kind: type[TreeFolderConfig],
    model: Heads,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    target: Decoder,
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write heads, trained for this target, and the nodes of their tree (`FolderConfig.of`, `save_folder`)."""
    config = kind.of(target.config, target_name, metadata, **asdict(model.config), paths=tuple(paths))
    weights = pack(dict(model.named_parameters()))
    save_folder(folder, config, weights | target_tensors(target.embedding.weight, model.kept_ids))


def load_tree(
    folder: Path,
    kind: type[C],
    target: Decoder,
    build: Callable[[C], M],
    *,
    depth: Callable[[C], int],
    dtype: torch.dtype,
) -> tuple[C, M, Tensor]:
    """Config of a folder, the frozen model it describes, and the target ids that the model may guess.

    Args:
        folder: of this kind.
        kind: its config.
        target: the target they were trained for.
        build: the model of a config; it is called with the meta device for default: the weights that it makes itself
            are the stored ones.
        depth: levels that the weights of a config can draft.
        dtype: of the stored weights, once loaded.
    """
    config, tensors = load_folder(folder, kind)
    kept_ids = take_kept_ids(tensors, config, target, folder)
    path = folder / CONFIG_FILE
    require_tree(config.paths, depth(config), source=str(path))
    try:
        with torch.device("meta"):
            model = build(config)
    except ModelError as error:
        raise ModelFormatError(f"{path}: {error}") from error
    # what the model has of the target's is real already
    shapes = {name: weight.shape for name, weight in model.named_parameters() if weight.is_meta}
    state = unpack(tensors, shapes, numpy_type(dtype), source=str(folder / WEIGHTS_FILE))
    model.load_state_dict(as_tensors(state), strict=False, assign=True)
    model.eval().requires_grad_(requires_grad=False)
    return config, model, as_tensor(kept_ids).to(target.embedding.weight.device)
