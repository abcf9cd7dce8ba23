"""Trained streams of a target and their tree on disk; the layout is that of `runtime.storage.head_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from decoding.tree_shape import Path as TreePath
from runtime.drafters.language_model.draft_passes import StreamConfig
from runtime.drafters.streams.drafter import StreamTree
from runtime.drafters.streams.model import StreamModel
from runtime.models.decoder import Decoder
from runtime.storage.head_folder import TreeFolderConfig, load_head
from runtime.storage.weight_folder import Count, Width, save_trained


class StreamFolderConfig(TreeFolderConfig):
    """`config.json` of streams."""

    speculators_model_type: Literal["mirrorsd_streams"] = "mirrorsd_streams"
    num_streams: Count
    start_layer: int
    rank: Width

    @property
    def depth(self) -> int:
        """Levels that the streams can draft."""
        return self.num_streams


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
    """Write streams, trained for this target, and the nodes of their tree (`FolderConfig.of`, `save_trained`).

    `kept_ids` are the target ids that the streams may propose, ascending.
    """
    config = StreamFolderConfig.of(
        target.config,
        target_name,
        metadata,
        **asdict(model.config),
        draft_vocab_size=len(kept_ids),
        paths=tuple(paths),
    )
    save_trained(folder, config, model.trained, embedding_VD=target.embedding.weight, kept_ids=kept_ids)


def load_streams(folder: Path, target: Decoder) -> StreamTree:
    """Return the streams of a folder for the target's own layers, in their dtype, and the tree."""

    def build(config: StreamFolderConfig) -> StreamModel:
        return StreamModel(target, config.sizes(StreamConfig))

    dtype = target.embedding.weight.dtype
    config, model, kept_ids = load_head(folder, StreamFolderConfig, target, build, dtype=dtype)
    model.to(kept_ids.device)
    return StreamTree(model, target, kept_ids, config.paths)
