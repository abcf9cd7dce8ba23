"""The fields of a Hugging Face `config.json` that are read, with their types and ranges; nothing is converted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decoding.errors import ModelError, ModelFormatError
from decoding.files import parse_json, read_bytes
from decoding.validation import described

Size = Annotated[int, Field(ge=1, le=1 << 24)]
"""More than any model has of anything, and so little that sizes of tensors do not overflow."""
Positions = Annotated[int, Field(ge=1, le=1 << 22)]
"""Cosines and sines of every position are made at the start."""
Count = Annotated[int, Field(ge=1, le=4096)]
TokenId = Annotated[int, Field(ge=0, le=1 << 31)]
Positive = Annotated[float, Field(gt=0, le=1e12)]

MARK: Final = "mirrorsd_random_weights"
"""Field of our own: the seed of a model that has no weights but random ones (`runtime.storage.shape_folder`)."""


class HfModel(BaseModel):
    """A part of such a file; it has more fields than are read."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class HfFamily(HfModel):
    """Fields that tell whether a model is supported."""

    architectures: list[str] | None = None
    hidden_act: str | None = None
    activation_function: str | None = None
    use_sliding_window: bool | None = None
    sliding_window: Annotated[int, Field(ge=0)] | None = None
    quantization_config: Any = None
    random_seed: Annotated[int, Field(ge=0, lt=1 << 32)] | None = Field(default=None, alias=MARK)


class HfRope(HfModel):
    """`rope_scaling`, or newer `rope_parameters`; the four factors are those of `llama3`."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Positions | None = None


class HfConfig(HfModel):
    """Sizes and constants of a decoder."""

    vocab_size: Size
    num_hidden_layers: Count
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Positions
    rms_norm_eps: Annotated[float, Field(ge=0, lt=1)]
    rope_theta: Positive | None = None
    rope_scaling: HfRope | None = None
    rope_parameters: HfRope | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    eos_token_id: TokenId | list[TokenId] | None = None


class HfOptConfig(HfModel):
    """Sizes and variants of an OPT decoder (arXiv 2205.01068)."""

    vocab_size: Size
    num_hidden_layers: Count
    hidden_size: Size
    ffn_dim: Size
    num_attention_heads: Count
    max_position_embeddings: Positions
    word_embed_proj_dim: Size | None = None
    do_layer_norm_before: bool = True
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    remove_final_layer_norm: Annotated[bool, Field(alias="_remove_final_layer_norm")] = False
    tie_word_embeddings: bool | None = None
    eos_token_id: TokenId | list[TokenId] | None = None


class HfGeneration(HfModel):
    """The fields of `generation_config.json` that are read."""

    eos_token_id: TokenId | list[TokenId] | None = None


M = TypeVar("M", bound=HfModel)


def validated(kind: type[M], raw: dict[str, Any], *, source: str) -> M:
    """The fields of an object; raises `ModelFormatError` with the first that are missing or wrong."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ModelFormatError(described(error, source=source)) from error


def read_object(path: Path, *, holds: str) -> dict[str, Any]:
    """Return the object in a JSON file; raise `ModelError`, which ends with `holds` if the file is missing."""
    try:
        raw = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file; {holds}") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise ModelFormatError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ModelFormatError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw
