"""Folders of EAGLE heads: those of this project's training (`runtime.drafters.head_drafter`), and published EAGLE-3.

Published heads (github.com/SafeAILab/EAGLE) are read from safetensors only. Their `config.json` is that of a Llama of
one layer (`LlamaForCausalLMEagle3`) with a `draft_vocab_size`. They read the target's hidden states after layers 2,
N / 2 and N - 3 of N, unless `eagle_config.eagle_aux_hidden_state_layer_ids` (counted from 0) has other layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from decoding.errors import ModelError, ModelFormatError, shown
from decoding.validation import validated
from runtime.arrays import as_array, as_tensor, numpy_type
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.eagle.model import Eagle1, Eagle3, EagleHead
from runtime.drafters.head_drafter import HeadFolderConfig, load_head, own_weights
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.models.hf_config import CONFIG_FILE, HfModel, Size, read_object
from runtime.storage.safetensors_files import published_parameters, read_published, take
from runtime.storage.weight_folder import WEIGHTS_FILE, Layers, mapped_ids, save_trained


class Eagle1FolderConfig(HeadFolderConfig):
    """`config.json` of an EAGLE-1 head."""

    speculators_model_type: Literal["mirrorsd_eagle1"] = "mirrorsd_eagle1"

    def build(self, target: Decoder) -> Eagle1:
        """See `HeadFolderConfig`."""
        return Eagle1(target.config, self.draft_vocab_size)


class Eagle3FolderConfig(HeadFolderConfig):
    """`config.json` of an EAGLE-3 head; `feature_layers` are the target layers that it reads."""

    layer_fields = ("feature_layers",)

    speculators_model_type: Literal["mirrorsd_eagle3"] = "mirrorsd_eagle3"
    feature_layers: Annotated[Layers, Field(min_length=1)]

    def build(self, target: Decoder) -> Eagle3:
        """See `HeadFolderConfig`."""
        return Eagle3(target.config, self.draft_vocab_size, len(self.feature_layers))


def save_eagle(
    head: EagleHead, folder: Path, *, feature_layers: Sequence[int], target_name: str, metadata: Mapping[str, Any]
) -> None:
    """Write a head, see `save_trained`; `feature_layers` are those that an EAGLE-3 head reads."""
    kind = Eagle3FolderConfig if isinstance(head, Eagle3) else Eagle1FolderConfig
    fields = {"feature_layers": tuple(feature_layers)} if isinstance(head, Eagle3) else {}
    save_trained(
        folder,
        kind,
        own_weights(head),
        target=head,
        target_name=target_name,
        kept_ids=head.output.kept_ids,
        fields=fields | {"metadata": dict(metadata)},
    )


def load_eagle1(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """Return the drafter (of EAGLE-2's dynamic trees) of the folder of an EAGLE-1 head; see `load_head`."""
    _, head = load_head(folder, Eagle1FolderConfig, target, dtype=dtype)
    return EagleDrafter(head, method="eagle2", feature_layers=(target.config.num_layers,))


def load_eagle3(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """Return the drafter of the folder of an EAGLE-3 head; see `load_head`."""
    config, head = load_head(folder, Eagle3FolderConfig, target, dtype=dtype)
    return EagleDrafter(head, method="eagle3", feature_layers=config.feature_layers)


ARCHITECTURE = "LlamaForCausalLMEagle3"
_PICKLED_FILE = "pytorch_model.bin"
_TENSORS: Mapping[str, tuple[str, ...]] = {
    "fuse.weight": ("fc.weight",),
    "token_norm": ("midlayer.input_layernorm.weight",),
    "feature_norm": ("midlayer.hidden_norm.weight",),
    "layer.qkv.weight": tuple(f"midlayer.self_attn.{part}_proj.weight" for part in "qkv"),
    "layer.out.weight": ("midlayer.self_attn.o_proj.weight",),
    "layer.mlp_norm": ("midlayer.post_attention_layernorm.weight",),
    "layer.gate_up.weight": ("midlayer.mlp.gate_proj.weight", "midlayer.mlp.up_proj.weight"),
    "layer.down.weight": ("midlayer.mlp.down_proj.weight",),
    "output_norm": ("norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
}
"""From our parameters to the published tensors that are concatenated into each."""
_EMBEDDING = "embed_tokens.weight"


class _EagleFields(HfModel):
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


class _PublishedConfig(HfModel):
    """Fields of `config.json` beyond those of a Llama; unsupported kinds of head have other values."""

    draft_vocab_size: Size | None = None
    num_hidden_layers: Literal[1] | None = None
    norm_before_residual: Literal[False] | None = None
    eagle_config: _EagleFields | None = None


def load_published_eagle3(folder: Path, target: Decoder, *, dtype: torch.dtype) -> EagleDrafter:
    """Return the drafter of a published checkpoint; if that has no embedding, it shares the target's.

    Raises `ModelError` for a target of another width, depth or vocabulary, `ModelFormatError` for a missing or damaged
    file.
    """
    path = folder / CONFIG_FILE
    raw = read_object(path, holds="a published EAGLE-3 head comes with one")
    if (found := raw.get("architectures")) != [ARCHITECTURE]:
        msg = f"{path}: architectures is {shown(found)}, not that of a published EAGLE-3 head, ['{ARCHITECTURE}']"
        raise ModelFormatError(msg)
    fields = validated(_PublishedConfig, raw, ModelFormatError, source=str(path))
    as_llama = raw | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    config = ModelConfig.from_hf(as_llama, source=str(path))
    vocab_size = _draft_vocab_size(fields, config, target, path)
    layers = _feature_layers(fields.eagle_config or _EagleFields(), target, path)
    with torch.device("meta"):
        head = Eagle3(replace(config, max_position=target.config.max_position), vocab_size, len(layers))
    path, tensors = read_published(folder, (WEIGHTS_FILE,), _PICKLED_FILE)
    kept_ids = _take_kept_ids(tensors, vocab_size, target, path)
    tensors.setdefault(_EMBEDDING, as_array(target.embedding.weight))
    wanted = {_EMBEDDING: (_EMBEDDING,), **_TENSORS}
    shapes = {ours: tuple(head.get_parameter(ours).shape) for ours in _TENSORS}
    shapes[_EMBEDDING] = target.config.vocab_size, config.hidden_size
    weights = published_parameters(wanted, shapes, tensors, numpy_type(dtype), path=path)
    embedding_VD = weights.pop(_EMBEDDING)
    head.load_state_dict(weights, strict=False, assign=True)
    device = target.embedding.weight.device
    head.use_rows(embedding_VD.to(device), head.lm_head.weight.to(device), kept_ids.to(device))
    head.to(device).eval().requires_grad_(requires_grad=False)
    return EagleDrafter(head, method="eagle3", feature_layers=layers, raw_features=True)


def _draft_vocab_size(fields: _PublishedConfig, config: ModelConfig, target: Decoder, path: Path) -> int:
    if config.vocab_size != target.config.vocab_size:
        msg = f"{path}: the head is for a vocabulary of {config.vocab_size}; this target has {target.config.vocab_size}"
        raise ModelError(msg)
    size = config.vocab_size if fields.draft_vocab_size is None else fields.draft_vocab_size
    if size > config.vocab_size:
        raise ModelFormatError(f"{path}: draft_vocab_size is {size}; expected 1..{config.vocab_size}")
    return size


def _feature_layers(fields: _EagleFields, target: Decoder, path: Path) -> tuple[int, ...]:
    num_layers, ids = target.config.num_layers, fields.eagle_aux_hidden_state_layer_ids
    layers = (2, num_layers // 2, num_layers - 3) if ids is None else tuple(layer + 1 for layer in ids)
    if list(layers) != sorted({*layers}) or not layers or not 1 <= layers[0] <= layers[-1] <= num_layers:
        found = shown(list(layers))
        msg = f"{path}: the head reads layers {found}; expected ascending ones of the target's 1..{num_layers}"
        raise ModelError(msg)
    return layers


def _take_kept_ids(tensors: dict[str, NDArray[Any]], vocab_size: int, target: Decoder, path: Path) -> Tensor:
    if vocab_size == target.config.vocab_size and "d2t" not in tensors:
        return torch.arange(vocab_size)
    d2t, t2d = (take(tensors, name, str(path)) for name in ("d2t", "t2d"))
    return as_tensor(mapped_ids(t2d, d2t, vocab_size, target, source=str(path)))
