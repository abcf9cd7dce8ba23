"""Trained streams of a target and their tree on disk; the layout is that of `runtime.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor

from decoding.errors import ModelError, ModelFormatError
from decoding.tree_shape import Path as TreePath
from runtime.decoder import Decoder
from runtime.quantization import pack, unpack
from runtime.static_tree import require_tree
from runtime.stream_model import StreamConfig, StreamModel
from runtime.stream_tree import StreamTree
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

STREAM_KIND: Final = "mirrorsd_streams"


class StreamFolderConfig(FolderConfig):
    """`config.json` of streams; `paths` are the nodes of the tree, see `decoding.tree_shape`."""

    speculators_model_type: Literal["mirrorsd_streams"] = STREAM_KIND
    num_streams: int
    start_layer: int
    rank: int
    paths: tuple[TreePath, ...]

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
    """Write streams and their tree; matrices become int8.

    Args:
        model: the trained streams.
        paths: nodes of the tree in their order.
        folder: created if it is not there; older streams in it are replaced.
        kept_ids: target ids that the streams may guess, ascending.
        target: the target they were trained for.
        target_name: what a user calls the target.
        metadata: anything JSON can hold: how they were trained.

    Raises:
        ModelError: the folder cannot be written.
    """
    config = StreamFolderConfig(
        speculators_config=SpeculatorsConfig(algorithm=STREAM_KIND, verifier=Verifier(name_or_path=target_name)),
        target_shape=TargetShape.of(target.config),
        draft_vocab_size=len(kept_ids),
        num_streams=model.config.num_streams,
        start_layer=model.config.start_layer,
        rank=model.config.rank,
        paths=tuple(paths),
        metadata=dict(metadata),
    )
    save_folder(folder, config, pack(model.trained) | target_tensors(target.embedding.weight, kept_ids))


def load_streams(folder: Path, target: Decoder) -> StreamTree:
    """The streams of a folder beside the target's own layers, in their dtype, and the tree.

    Raises:
        ModelError: the target is not the one the streams were trained for.
        ModelFormatError: a file is missing, damaged, or of another kind.
    """
    config, tensors = load_folder(folder, StreamFolderConfig)
    kept_ids = take_kept_ids(tensors, config, target, folder)
    path = folder / CONFIG_FILE
    require_tree(config.paths, config.num_streams, source=str(path))
    try:
        model = StreamModel(target, config.streams)
    except ModelError as error:
        msg = f"{path}: {error}"
        raise ModelFormatError(msg) from error
    weight = target.embedding.weight
    shapes = {name: parameter.shape for name, parameter in model.trained.items()}
    state = unpack(tensors, shapes, weight.dtype, source=str(folder / WEIGHTS_FILE))
    model.load_state_dict(state, strict=False, assign=True)
    model.to(weight.device).eval().requires_grad_(requires_grad=False)
    return StreamTree(model, target, kept_ids.to(weight.device), config.paths)
