"""The shape of a decoder: the one place where Hugging Face's names become ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.errors import ModelError, shown
from runtime.models.hf_config import HfConfig, HfFamily, HfGeneration, HfRope, read_object, validated

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
        if self.head_dim % 2 or not self.head_dim:
            raise ModelError(f"head_dim is {self.head_dim}: rotary embeddings need an even one of at least 2")

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
        holds = "a model folder holds config.json, tokenizer.json and *.safetensors"
        config = cls.from_hf(read_object(path, holds=holds), source=str(path))
        path = folder / "generation_config.json"
        if not path.is_file():
            return config
        generation = validated(HfGeneration, read_object(path, holds=holds), source=str(path))
        eos = _as_ids(generation.eos_token_id)
        return replace(config, eos_token_ids=eos) if eos else config

    @classmethod
    def from_hf(cls, raw: dict[str, Any], *, source: str = "config.json") -> ModelConfig:
        """Translate the keys of a Hugging Face config.

        Raises:
            ModelError: a key is missing or has a wrong value, or the architecture, its variant or the storage of its
                weights is not supported.
        """
        architecture = _supported_architecture(validated(HfFamily, raw, source=source), source)
        found = validated(HfConfig, raw, source=source)
        qwen2, bias = architecture == "Qwen2ForCausalLM", bool(found.attention_bias)
        try:
            return cls(
                architecture=architecture,
                vocab_size=found.vocab_size,
                num_layers=found.num_hidden_layers,
                hidden_size=found.hidden_size,
                intermediate_size=found.intermediate_size,
                num_heads=found.num_attention_heads,
                num_kv_heads=found.num_key_value_heads or found.num_attention_heads,
                head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
                max_position=found.max_position_embeddings,
                rope_theta=found.rope_theta or _rope(found).rope_theta or 10_000.0,
                norm_eps=found.rms_norm_eps,
                tie_embeddings=bool(found.tie_word_embeddings),
                attention_bias=bias or qwen2,
                attention_out_bias=bias and not qwen2,
                mlp_bias=bool(found.mlp_bias),
                qk_norm=architecture == "Qwen3ForCausalLM",
                rope_scaling=_rope_scaling(_rope(found)),
                eos_token_ids=_as_ids(found.eos_token_id),
            )
        except ModelError as error:
            raise ModelError(f"{source}: {error}") from error


def _supported_architecture(found: HfFamily, source: str) -> str:
    """The architecture of a config; raises `ModelError` for one, or a variant of one, that is not supported."""
    architecture = (found.architectures or ["(none)"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {shown(architecture)} is not supported; supported: {supported}")
    if found.hidden_act not in (None, "silu"):
        raise ModelError(f"{source}: hidden_act {shown(found.hidden_act)} is not supported; supported: 'silu'")
    if found.use_sliding_window or (architecture == "MistralForCausalLM" and found.sliding_window):
        raise ModelError(f"{source}: sliding-window attention is not supported; only full attention is")
    if quantization := found.quantization_config:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        name = method if isinstance(method, str) else shown(method)
        raise ModelError(
            f"{source}: weights quantized by {name} are not read; name the model's folder in 16 or 32 bits"
        )
    return architecture


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _rope(found: HfConfig) -> HfRope:
    """Older configs write `rope_scaling` next to `rope_theta`, newer ones put both in `rope_parameters`."""
    return found.rope_parameters or found.rope_scaling or HfRope()


def _rope_scaling(rope: HfRope) -> Llama3Rope | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"rope_scaling type {shown(kind)} is not supported; supported: 'default', 'llama3'")
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    original = rope.original_max_position_embeddings
    if factor is None or low is None or high is None or original is None:
        raise ModelError(
            "rope_scaling of type 'llama3' needs factor, low_freq_factor, high_freq_factor and "
            "original_max_position_embeddings"
        )
    if not low < high:
        raise ModelError(f"rope_scaling has low_freq_factor {low}, not below high_freq_factor {high}")
    return Llama3Rope(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position=original)
