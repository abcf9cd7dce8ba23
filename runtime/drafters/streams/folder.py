"""Trained streams of a target and their tree on disk; the layout is that of `runtime.storage.tree_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor

from decoding.tree_shape import Path as TreePath
from runtime.drafters.streams.drafter import StreamTree
from runtime.drafters.streams.model import StreamConfig, StreamModel
from runtime.models.decoder import Decoder
from runtime.storage.quantization import pack
from runtime.storage.tree_folder import TreeFolderConfig, load_tree
from runtime.storage.weight_folder import common_fields, save_folder, target_tensors

STREAM_KIND: Final = "mirrorsd_streams"


class StreamFolderConfig(TreeFolderConfig):
    """`config.json` of streams."""

    speculators_model_type: Literal["mirrorsd_streams"] = STREAM_KIND
    num_streams: int
    start_layer: int
    rank: int

    @property
    def depth(self) -> int:
        """Every stream drafts a level."""
        return self.num_streams

    @property
    def streams(self) -> StreamConfig:
        """What `StreamModel` is built from."""
        return StreamConfig(num_streams=self.num_streams, start_layer=self.start_layer, rank=self.rank)


def save_streams(
    model: StreamModel,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    kept_ids: Tensor,
    target: Decoder,
    target_name: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write streams, trained for this target, and the nodes of their tree in order; matrices become int8.

    The streams may guess `kept_ids`, which are ascending target ids. Older streams in the folder are replaced; for
    the other arguments see `runtime.storage.weight_folder.common_fields`.

    Raises:
        ModelError: the folder cannot be written.
    """
    config = StreamFolderConfig(
        **common_fields(STREAM_KIND, target.config, target_name, metadata),
        draft_vocab_size=len(kept_ids),
        num_streams=model.config.num_streams,
        start_layer=model.config.start_layer,
        rank=model.config.rank,
        paths=tuple(paths),
    )
    save_folder(folder, config, pack(model.trained) | target_tensors(target.embedding.weight, kept_ids))


def load_streams(folder: Path, target: Decoder) -> StreamTree:
    """The streams of a folder for the target's own layers, in their dtype, and the tree (errors: `load_tree`)."""

    def build(config: StreamFolderConfig) -> StreamModel:
        return StreamModel(target, config.streams)

    dtype = target.embedding.weight.dtype
    config, model, kept_ids = load_tree(folder, StreamFolderConfig, target, build, dtype=dtype)
    model.to(kept_ids.device)
    return StreamTree(model, target, kept_ids, config.paths)
