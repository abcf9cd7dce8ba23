"""The shape of a decoder: the one place where Hugging Face's names become ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.errors import ModelError

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Rope:
    """Frequency scaling of Llama 3.1 (`rope_scaling` with type `llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes and constants of a pre-norm, rotary, gated decoder (Llama, Mistral, Qwen2, Qwen3).

    Counts are of elements; `rope_theta` and `norm_eps` are dimensionless.
    """

    architecture: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rope_theta: float
    norm_eps: float
    tie_embeddings: bool
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope_scaling: Llama3Rope | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            msg = f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            raise ModelError(msg)
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd: rotary embeddings need an even one")

    @property
    def num_queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer's matrices, biases and norms left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` (and the EOS ids of `generation_config.json`) of a Hugging Face folder.

        Raises:
            ModelError: the file is missing, malformed, or names an architecture outside
                `SUPPORTED_ARCHITECTURES`.
        """
        path = folder / "config.json"
        config = cls.from_hf(_read_object(path), source=str(path))
        generation = folder / "generation_config.json"
        if not generation.is_file():
            return config
        eos = _as_ids(_read_object(generation).get("eos_token_id"))
        return replace(config, eos_token_ids=eos) if eos else config

    @classmethod
    def from_hf(cls, raw: dict[str, Any], *, source: str = "config.json") -> ModelConfig:
        """Translate the keys of a Hugging Face config.

        Raises:
            ModelError: a key is missing, or the architecture, its variant or the storage of its weights is not
                supported.
        """
        architecture = _supported_architecture(raw, source)
        qwen2 = architecture == "Qwen2ForCausalLM"
        bias = bool(raw.get("attention_bias", False))
        try:
            num_heads, hidden_size = int(raw["num_attention_heads"]), int(raw["hidden_size"])
            return cls(
                architecture=architecture,
                vocab_size=int(raw["vocab_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                hidden_size=hidden_size,
                intermediate_size=int(raw["intermediate_size"]),
                num_heads=num_heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
                head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
                max_position=int(raw["max_position_embeddings"]),
                rope_theta=_rope_theta(raw),
                norm_eps=float(raw["rms_norm_eps"]),
                tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
                attention_bias=bias or qwen2,
                attention_out_bias=bias and not qwen2,
                mlp_bias=bool(raw.get("mlp_bias", False)),
                qk_norm=architecture == "Qwen3ForCausalLM",
                rope_scaling=_rope_scaling(raw, source),
                eos_token_ids=_as_ids(raw.get("eos_token_id")),
            )
        except KeyError as error:
            raise ModelError(f"{source}: the key {error} is missing") from error


def _supported_architecture(raw: dict[str, Any], source: str) -> str:
    """The architecture of a config; raises `ModelError` for one, or a variant of one, that is not supported."""
    architecture: str = (raw.get("architectures") or ["(none)"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {architecture} is not supported; supported: {supported}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{source}: hidden_act {raw['hidden_act']!r} is not supported; supported: 'silu'")
    if raw.get("use_sliding_window") or (architecture == "MistralForCausalLM" and raw.get("sliding_window")):
        raise ModelError(f"{source}: sliding-window attention is not supported; only full attention is")
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        msg = f"{source}: weights quantized by {method} are not read; name the model's folder in 16 or 32 bits"
        raise ModelError(msg)
    return architecture


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        msg = f"{path}: no such file; a model folder holds config.json, tokenizer.json and *.safetensors"
        raise ModelError(msg) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _as_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    return tuple(int(item) for item in value) if isinstance(value, list) else ()


def _rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    """Older configs write `rope_scaling` next to `rope_theta`, newer ones put both in `rope_parameters`."""
    return dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})


def _rope_theta(raw: dict[str, Any]) -> float:
    return float(raw.get("rope_theta") or _rope_parameters(raw).get("rope_theta") or 10_000.0)


def _rope_scaling(raw: dict[str, Any], source: str) -> Llama3Rope | None:
    parameters = _rope_parameters(raw)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"{source}: rope_scaling type {kind!r} is not supported; supported: 'default', 'llama3'")
    return Llama3Rope(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_position=int(parameters["original_max_position_embeddings"]),
    )
