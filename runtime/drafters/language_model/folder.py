"""Folders of draft models: trained for a target (`runtime.storage.weight_folder`), standalone, or parallel tracks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from decoding.errors import ModelError, ModelFormatError
from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.drafters.language_model.draft_passes import DraftConfig, StoredDraft
from runtime.models.config import ModelConfig, decoder_shapes
from runtime.models.hf_config import CONFIG_FILE
from runtime.models.model_folder import has_random_weights
from runtime.models.vocabulary import OutputRows
from runtime.storage.safetensors_files import pack, unpack
from runtime.storage.stored_decoder import EmbeddingRows, StoredDecoder, by_layer, load_stored_decoder
from runtime.storage.weight_folder import (
    WEIGHTS_FILE,
    Count,
    EmbeddedTarget,
    FolderConfig,
    Layers,
    Strict,
    Width,
    load_folder,
    load_trained,
    read_config,
    save_folder,
    save_trained,
)

if TYPE_CHECKING:
    import torch

    from runtime.drafters.language_model.model import DraftModel
    from runtime.drafters.streams import StreamModel
    from runtime.models.decoder import Decoder


_OF_THE_TARGET = ("decoder.embedding.weight", "decoder.lm_head.weight")
_OF_STREAMS = "streams."


class StreamConfig(Strict):
    """Sizes of streams: tokens guessed after a row's next token, layers below the streams, rank of low-rank changes."""

    num_streams: Count
    start_layer: int
    rank: Width


class DrafterFolderConfig(FolderConfig):
    """`config.json` of a trained draft model: the fields of `DraftConfig`, and those of every folder."""

    layer_fields = ("source_layers", "exit_features")

    speculators_model_type: Literal["mirrorsd_draft"] = "mirrorsd_draft"
    source_layers: Layers
    exit_features: Layers
    feature_layer: int
    streams: StreamConfig | None = None


class DraftArrays(NamedTuple):
    """A draft without its target's rows: config, parameters by their names in `DraftModel`, and kept target ids."""

    config: DraftConfig
    parameters: dict[str, NDArray[Any]]
    of_streams: dict[str, NDArray[Any]]
    kept_ids: NDArray[np.int64]


def save_draft(draft: DraftModel, folder: Path, *, target_name: str, metadata: Mapping[str, Any]) -> None:
    """Write a draft without its streams and without embedding and head, which are its target's; see `save_trained`."""
    save_trained(
        folder,
        DrafterFolderConfig,
        {name: weight for name, weight in draft.named_parameters() if name not in _OF_THE_TARGET},
        target=draft.decoder,
        target_name=target_name,
        kept_ids=draft.kept_ids,
        fields=asdict(replace(draft.config, streams=None)) | {"metadata": dict(metadata)},
    )


def add_streams(source: Path, streams: StreamModel, folder: Path, *, training: Mapping[str, Any]) -> None:
    """Write the draft of `source` to `folder`, with trained streams in place of any that it has.

    `training` (how they were trained) becomes `streams` in the metadata. Raises `ModelFormatError` if `source` is not
    the folder of a draft.
    """
    config, tensors = load_folder(source, DrafterFolderConfig)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OF_STREAMS)}
    added = {_OF_STREAMS + name: tensor for name, tensor in pack(streams.trained).items()}
    metadata = config.metadata | {"streams": dict(training)}
    config = config.model_copy(update={"streams": streams.config, "metadata": metadata})
    save_folder(folder, config, kept | added)


def load_draft_of(folder: Path, target: Decoder | StoredDecoder, *, dtype: Any) -> DraftModel | StoredDraft:
    """Return the draft of a folder: as a torch module, or for compiled lanes as arrays."""
    if isinstance(target, StoredDecoder):
        return load_stored_draft(folder, target, dtype)
    return load_draft(folder, target, dtype=dtype)


def load_draft(folder: Path, target: Decoder, *, dtype: torch.dtype) -> DraftModel:
    """Return the draft of a folder on the target's device; it shares the target's embedding if their dtypes agree."""
    import torch
    from torch import nn

    from runtime.drafters.language_model.model import DraftModel
    from runtime.models.decoder import Rotary

    stored, source = read_draft(folder, target, numpy_type(dtype)), str(folder / WEIGHTS_FILE)
    with torch.device("meta"):
        draft = DraftModel(target.config, stored.config)
    draft.load_state_dict(as_tensors(stored.parameters), strict=False, assign=True)
    draft.share(target, as_tensor(stored.kept_ids))
    for rows in (draft.decoder.embedding, draft.decoder.lm_head):
        rows.weight = nn.Parameter(rows.weight.to(dtype), requires_grad=False)
    draft.decoder.rotary = Rotary(target.config)
    if stored.config.streams is not None:
        streams = draft.add_streams()
        shapes = {_OF_STREAMS + name: tuple(weight.shape) for name, weight in streams.trained.items()}
        found = unpack(stored.of_streams, shapes, numpy_type(dtype), source=source)
        state = {name.removeprefix(_OF_STREAMS): weight for name, weight in as_tensors(found).items()}
        streams.load_state_dict(state, strict=False, assign=True)
    draft.to(target.embedding.weight.device)
    return draft.eval().requires_grad_(requires_grad=False)


def load_stored_draft(folder: Path, target: StoredDecoder, dtype: np.dtype[Any]) -> StoredDraft:
    """Return the draft of a folder as arrays for compiled lanes, without streams; it shares its target's rows."""
    stored = read_draft(folder, target, dtype)
    arrays = {name.removeprefix("decoder."): array for name, array in stored.parameters.items()}
    kept_VD = EmbeddingRows(target.lm_head.weight[stored.kept_ids])
    decoder = StoredDecoder(
        config=replace(target.config, num_layers=len(stored.config.source_layers), tie_embeddings=False),
        embedding=target.embedding,
        lm_head=kept_VD,
        final_norm=arrays["final_norm"].astype(np.float32),
        rotary=target.rotary,
        layers=by_layer(arrays),
    )
    output = OutputRows(stored.kept_ids, kept_VD.weight, target.lm_head.weight)
    fuse = EmbeddingRows(arrays["fuse.weight"]) if "fuse.weight" in arrays else None
    return StoredDraft(decoder, replace(stored.config, streams=None), output, fuse=fuse)


def read_draft(folder: Path, target: EmbeddedTarget, dtype: np.dtype[Any]) -> DraftArrays:
    """Return the arrays of a draft's folder; raise `ModelError` for another target, `ModelFormatError` if damaged."""
    stored = load_trained(folder, DrafterFolderConfig, target)
    config, arrays = stored.config, stored.arrays
    try:
        draft_config = DraftConfig(
            source_layers=config.source_layers,
            vocab_size=config.draft_vocab_size,
            exit_features=config.exit_features,
            feature_layer=config.feature_layer,
            streams=config.streams,
        )
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
    of_streams = {name: arrays.pop(name) for name in list(arrays) if config.streams and name.startswith(_OF_STREAMS)}
    parameters = stored.unpacked(_shapes(target.config, draft_config), dtype)
    return DraftArrays(draft_config, parameters, of_streams, stored.kept_ids)


def _shapes(target: ModelConfig, config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that a draft's folder stores, without streams."""
    of_decoder = decoder_shapes(replace(target, num_layers=len(config.source_layers)))
    shapes = {f"decoder.{name}": shape for name, shape in of_decoder.items()}
    if config.exit_features:
        shapes["fuse.weight"] = target.hidden_size, len(config.exit_features) * target.hidden_size
    return {name: shape for name, shape in shapes.items() if name not in _OF_THE_TARGET}


def load_causal_lm(folder: Path, target_folder: Path, *, dtype: Any) -> DraftModel | StoredDraft:
    """Return a standalone model, in numpy's or torch's `dtype`; errors as in `require_fit`."""
    require_fit(folder, target_folder)
    vocab_size = ModelConfig.from_folder(target_folder).vocab_size
    if not isinstance(dtype, np.dtype):
        from runtime.models.decoder import load_decoder

        return as_draft(load_decoder(folder, dtype=dtype), vocab_size)
    decoder = load_stored_decoder(folder, dtype)
    config = _draft_config(decoder.config, vocab_size)
    rows_VD = decoder.lm_head.weight[: config.vocab_size]
    return StoredDraft(decoder, config, OutputRows(np.arange(config.vocab_size), rows_VD))


def as_draft(decoder: Decoder, target_vocab_size: int) -> DraftModel:
    """Return a decoder as a draft model that shares its weights and proposes only ids of the target."""
    import torch

    from runtime.drafters.language_model.model import DraftModel

    config = _draft_config(decoder.config, target_vocab_size)
    with torch.device("meta"):
        draft = DraftModel(decoder.config, config)
    draft.decoder = decoder
    draft.kept_ids = torch.arange(config.vocab_size, device=decoder.lm_head.weight.device)
    draft.output = OutputRows(draft.kept_ids, decoder.lm_head.weight.detach()[: config.vocab_size])
    return draft.eval().requires_grad_(requires_grad=False)


def _draft_config(config: ModelConfig, target_vocab_size: int) -> DraftConfig:
    layers = tuple(range(1, config.num_layers + 1))
    return DraftConfig(source_layers=layers, vocab_size=min(config.vocab_size, target_vocab_size))


def require_fit(folder: Path, target_folder: Path) -> None:
    """Raise `ModelError` for a standalone draft with another tokenizer; models with random weights need none."""
    if not has_random_weights(folder) and not has_random_weights(target_folder):
        require_same_tokenizer(folder, target_folder)


def require_same_tokenizer(draft_folder: Path, target_folder: Path) -> None:
    """Raise `ModelError`, with the first such id and both tokens, if the tokens of the models' tokenizers differ."""
    from runtime.models.tokenizer import Tokenizer

    draft, target = (Tokenizer.from_folder(folder).tokens() for folder in (draft_folder, target_folder))
    for token_id in sorted(draft.keys() | target.keys()):
        ours, theirs = draft.get(token_id), target.get(token_id)
        if ours != theirs:
            raise ModelError(
                f"{draft_folder}: cannot draft for {target_folder}: their tokenizers differ, first at id {token_id}, "
                f"which is {_called(ours)} for the draft and {_called(theirs)} for the target"
            )


def _called(token: str | None) -> str:
    return "no token" if token is None else repr(token)


NUM_SEGMENTS: Final = 2


class ParallelTrackConfig(Strict):
    """`config.json` of a draft of parallel tracks: the sizes of one track; all else is as in the target.

    The tracks are divided evenly over a lane's ranks; each has two segments of layers. There are no trained weights.
    """

    speculators_model_type: Literal["mirrorsd_parallel_track"] = "mirrorsd_parallel_track"
    num_tracks: Count
    layers_per_segment: Count
    hidden_size: Width
    intermediate_size: Width
    num_heads: Width
    num_kv_heads: Width
    head_dim: Width
    weights: Literal["random"]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0

    def track(self, target: ModelConfig) -> ModelConfig:
        """Return the config of one track of a draft for this target; raise `ModelError` for contradictory sizes."""
        return replace(
            target,
            num_layers=NUM_SEGMENTS * self.layers_per_segment,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            tie_embeddings=False,
        )


def read_tracks(folder: Path, target: ModelConfig) -> tuple[ParallelTrackConfig, ModelConfig]:
    """Return the config of a folder of parallel tracks, and that of one track; raise `ModelFormatError` if damaged."""
    config = read_config(folder, ParallelTrackConfig, "a draft of parallel tracks comes with one")
    try:
        return config, config.track(target)
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
