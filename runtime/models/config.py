"""The shape of a decoder; `runtime.models.hf_config` reads it from Hugging Face's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from decoding.errors import ModelError


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Rope:
    """Frequency scaling of Llama 3.1 (`rope_scaling` with type `llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes and constants of a pre-norm decoder (Llama, Mistral, Qwen2, Qwen3, OPT).

    `rope_theta` is 0 where positions are learned. `random_seed` is that of a model without weights of its own
    (`runtime.models.model_folder`).
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
    positions: Literal["rotary", "learned"] = "rotary"
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["gated", "relu"] = "gated"
    random_seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            msg = f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            raise ModelError(msg)
        if self.positions == "rotary" and (self.head_dim % 2 or not self.head_dim):
            raise ModelError(f"head_dim is {self.head_dim}: rotary embeddings need an even one of at least 2")

    @property
    def num_queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer's matrices, biases and norms left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + (3 if self.mlp == "gated" else 2) * self.hidden_size * self.intermediate_size

    def require_rotary(self, what: str) -> None:
        """Raise `ModelError` for a model that is no Llama, to which trained heads and the like cannot belong."""
        if (self.positions, self.norm, self.mlp) != ("rotary", "rms", "gated"):
            raise ModelError(
                f"{what}: made for targets with rotary positions, RMS norms and gated MLPs (Llama, Mistral, Qwen), not "
                f"for {self.architecture}, which any model with its tokenizer can draft for, and prompt lookup"
            )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json`, and the EOS ids of `generation_config.json`; raise `ModelError` if wrong or missing."""
        from runtime.models.hf_config import read_config  # by pydantic, which a shape that was no file does not need

        return read_config(folder)

    @classmethod
    def from_hf(cls, raw: dict[str, Any], *, source: str = "config.json") -> ModelConfig:
        """Translate a Hugging Face config; raise `ModelError` for a wrong key or what is not supported."""
        from runtime.models.hf_config import translated

        return translated(raw, source)
