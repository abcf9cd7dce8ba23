"""A trained draft model on disk; the layout is that of `runtime.storage.weight_folder`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.model import DraftConfig, DraftModel
from runtime.drafters.streams.model import StreamConfig, StreamModel
from runtime.models.decoder import Decoder, Rotary
from runtime.storage.quantization import pack, unpack
from runtime.storage.weight_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Count,
    FolderConfig,
    Layers,
    Strict,
    Width,
    load_folder,
    require_layers,
    save_folder,
    take_kept_ids,
    target_tensors,
)

_OF_THE_TARGET = ("decoder.embedding.weight", "decoder.lm_head.weight")
_OF_STREAMS = "streams."


class StreamFields(Strict):
    """`StreamConfig` as a folder holds it."""

    num_streams: Count
    start_layer: int
    rank: Width


class DrafterFolderConfig(FolderConfig):
    """`config.json` of a draft model: fields of `DraftConfig`, and those of every folder."""

    speculators_model_type: Literal["mirrorsd_draft"] = "mirrorsd_draft"
    source_layers: Layers
    exit_features: Layers
    feature_layer: int
    streams: StreamFields | None = None


def save_draft(draft: DraftModel, folder: Path, *, target_name: str, metadata: Mapping[str, Any]) -> None:
    """Write a draft without streams, whose embedding and head are its target's (`FolderConfig.of`, `save_folder`)."""
    sizes = asdict(replace(draft.config, streams=None))
    config = DrafterFolderConfig.of(draft.decoder.config, target_name, metadata, **sizes)
    weights = {name: weight for name, weight in draft.named_parameters() if name not in _OF_THE_TARGET}
    save_folder(folder, config, pack(weights) | target_tensors(draft.decoder.embedding.weight, draft.kept_ids))


def add_streams(source: Path, streams: StreamModel, folder: Path, *, training: Mapping[str, Any]) -> None:
    """Write the draft of `source` to `folder` as it is, with streams that were trained for it.

    Args:
        source: folder of a draft; streams it has are replaced.
        streams: the trained streams.
        folder: see `save_folder`.
        training: anything JSON can hold: how the streams were trained; the metadata's `streams`.

    Raises:
        ModelFormatError: `source` is not the folder of a draft.
    """
    config, tensors = load_folder(source, DrafterFolderConfig)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OF_STREAMS)}
    added = {_OF_STREAMS + name: tensor for name, tensor in pack(streams.trained).items()}
    metadata = config.metadata | {"streams": dict(training)}
    sizes = StreamFields(**asdict(streams.config))
    config = config.model_copy(update={"streams": sizes, "metadata": metadata})
    save_folder(folder, config, kept | added)


def load_language_model(folder: Path, target: Decoder, *, dtype: torch.dtype) -> Drafter:
    """What drafts with the draft of a folder (see `load_draft`)."""
    return Drafter(load_draft(folder, target, dtype=dtype))


def load_draft(folder: Path, target: Decoder, *, dtype: torch.dtype) -> DraftModel:
    """The draft of a folder, on the target's device and sharing its embedding (memory too, where dtypes agree)."""
    config, tensors = load_folder(folder, DrafterFolderConfig)
    require_layers(config.source_layers, target, "source_layers", folder)
    require_layers(config.exit_features, target, "exit_features", folder)
    kept_ids = take_kept_ids(tensors, config, target, folder)
    try:
        streams = StreamConfig(**config.streams.model_dump()) if config.streams else None
        own_config = config.sizes(DraftConfig, streams=streams)
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
    with torch.device("meta"):
        draft = DraftModel(target.config, own_config)
    shapes = {name: weight.shape for name, weight in draft.named_parameters() if name not in _OF_THE_TARGET}
    of_streams = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_OF_STREAMS)}
    state = unpack(tensors, shapes, dtype, source=str(folder / WEIGHTS_FILE))
    draft.load_state_dict(state, strict=False, assign=True)
    draft.share(target, kept_ids)
    for rows in (draft.decoder.embedding, draft.decoder.lm_head):
        rows.weight = nn.Parameter(rows.weight.to(dtype), requires_grad=False)
    draft.decoder.rotary = Rotary(target.config, len(target.rotary.cos_PH))
    _load_streams(draft, of_streams, dtype, source=str(folder / WEIGHTS_FILE))
    draft.to(target.embedding.weight.device)
    return draft.eval().requires_grad_(requires_grad=False)


def _load_streams(draft: DraftModel, tensors: Mapping[str, Tensor], dtype: torch.dtype, *, source: str) -> None:
    """Give a draft whose layers are loaded its streams, if its config has any."""
    if draft.config.streams is None:
        unpack(tensors, {}, dtype, source=source)  # refuses what is there all the same
        return
    streams = draft.add_streams()
    shapes = {_OF_STREAMS + name: weight.shape for name, weight in streams.trained.items()}
    state = unpack(tensors, shapes, dtype, source=source)
    state = {name.removeprefix(_OF_STREAMS): weight for name, weight in state.items()}
    streams.load_state_dict(state, strict=False, assign=True)
