"""Trained streams of a target and their tree on disk; the layout is that of `runtime.storage.tree_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from decoding.tree_shape import Path as TreePath
from runtime.drafters.streams.drafter import StreamTree
from runtime.drafters.streams.model import StreamModel
from runtime.drafters.streams.stream_sizes import StreamConfig
from runtime.models.decoder import Decoder
from runtime.storage.quantization import pack
from runtime.storage.tree_folder import TreeFolderConfig, load_tree
from runtime.storage.weight_folder import Count, Width, save_folder, target_tensors


class StreamFolderConfig(TreeFolderConfig):
    """`config.json` of streams."""

    speculators_model_type: Literal["mirrorsd_streams"] = "mirrorsd_streams"
    num_streams: Count
    start_layer: int
    rank: Width


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
    the other arguments see `FolderConfig.of`.
    """
    config = StreamFolderConfig.of(
        target.config,
        target_name,
        metadata,
        **asdict(model.config),
        draft_vocab_size=len(kept_ids),
        paths=tuple(paths),
    )
    save_folder(folder, config, pack(model.trained) | target_tensors(target.embedding.weight, kept_ids))


def load_streams(folder: Path, target: Decoder) -> StreamTree:
    """The streams of a folder for the target's own layers, in their dtype, and the tree."""

    def build(config: StreamFolderConfig) -> StreamModel:
        return StreamModel(target, config.sizes(StreamConfig))

    dtype = target.embedding.weight.dtype
    config, model, kept_ids = load_tree(
        folder, StreamFolderConfig, target, build, depth=lambda config: config.num_streams, dtype=dtype
    )
    model.to(kept_ids.device)
    return StreamTree(model, target, kept_ids, config.paths)
