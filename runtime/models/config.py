"""A model's configuration, and the names and shapes of its parameters, here and in Hugging Face folders.

`runtime.models.hf_config` reads the configuration from Hugging Face's files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from decoding.errors import ConfigError, ModelError

IN_BITS: Final = "name the model's folder in 16 or 32 bits"
"""The advice in messages about quantized weights."""


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

    `is_window` says whether `max_position` is the length of a sliding window. `rope_theta` is 0 for learned positions.
    `random_seed` is set for a model with random weights (`runtime.models.model_folder`).
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
    is_window: bool = False
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
    def most_positions(self) -> str:
        """The number of positions in words, with the reason if a sliding window limits it."""
        why = " (its sliding window; longer texts are not supported)" if self.is_window else ""
        return f"{self.max_position}{why}"

    def require_positions(self, num_tokens: int, num_drafted: int, *, what: str, whose: str) -> None:
        """Raise `ConfigError` if a text of `num_tokens`, prompt included, needs more positions than there are.

        A window of `num_drafted` tokens may reach beyond the end of the text, and a branch by one more window.
        """
        if (needed := num_tokens + 2 * (num_drafted + 1)) > self.max_position:
            raise ConfigError(f"{what} need {needed} positions; {whose} has {self.most_positions}")

    @property
    def num_queries_per_kv(self) -> int:
        """Number of query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_layer_parameters(self) -> int:
        """Number of parameters in the matrices of one layer, without biases and norms."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + (3 if self.mlp == "gated" else 2) * self.hidden_size * self.intermediate_size

    def require_rotary(self, what: str) -> None:
        """Raise `ModelError` unless the model is of the Llama kind, the only one that drafters can be trained for."""
        if (self.positions, self.norm, self.mlp) != ("rotary", "rms", "gated"):
            raise ModelError(
                f"{what}: made for targets with rotary positions, RMS norms and gated MLPs (Llama, Mistral, Qwen), not "
                f"for {self.architecture}, which any model with its tokenizer can draft for, and prompt lookup"
            )

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `config.json`, and the EOS ids of `generation_config.json`; raise `ModelError` if wrong or missing."""
        from runtime.models.hf_config import read_config  # imports pydantic, which not every use of a shape needs

        return read_config(folder)

    @classmethod
    def from_hf(cls, raw: dict[str, Any], *, source: str = "config.json") -> "ModelConfig":
        """Translate a Hugging Face config; raise `ModelError` if it is wrong or not supported."""
        from runtime.models.hf_config import translated

        return translated(raw, source)


LEARNED_OFFSET: Final = 2
"""First row of OPT's position table that is used; the two rows before it were meant for padding."""

_ATTENTION: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LLAMA: Final = {
    "final_norm": ("model.norm",),
    "input_norm": ("input_layernorm",),
    "qkv": _ATTENTION,
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""From our names of parameters to Hugging Face's; the rows of several matrices are concatenated into one of ours."""
_OPT: Final = {
    "final_norm": ("model.decoder.final_layer_norm",),
    "input_norm": ("self_attn_layer_norm",),
    "qkv": _ATTENTION,
    "out": ("self_attn.out_proj",),
    "mlp_norm": ("final_layer_norm",),
    "gate_up": ("fc1",),
    "down": ("fc2",),
}
_QK_NORMS: Final = ("q_norm", "k_norm")


def decoder_tensors(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Return for each parameter, by our name, the names of the Hugging Face tensors that are concatenated into it."""
    family, root = (_OPT, "model.decoder") if config.architecture == "OPTForCausalLM" else (_LLAMA, "model")
    names: dict[str, tuple[str, ...]] = {"embedding.weight": (f"{root}.embed_tokens.weight",)}
    names |= _tensors_of(config, "final_norm", "final_norm", family["final_norm"])
    if config.positions == "learned":
        names["positions.weight"] = (f"{root}.embed_positions.weight",)
    if not config.tie_embeddings:
        names["lm_head.weight"] = ("lm_head.weight",)
    for layer in range(config.num_layers):
        for part, modules in family.items():
            if part != "final_norm" and (config.qk_norm or part not in _QK_NORMS):
                theirs = [f"{root}.layers.{layer}.{module}" for module in modules]
                names |= _tensors_of(config, part, f"layers.{layer}.{part}", theirs)
    return names


def _tensors_of(config: ModelConfig, part: str, ours: str, theirs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the tensors of the weight and the bias (if any) of a norm or a matrix, by our names."""
    has_bias = {
        "qkv": config.attention_bias,
        "out": config.attention_out_bias,
        "gate_up": config.mlp_bias,
        "down": config.mlp_bias,
    }
    weight, bias = (f"{ours}.weight", f"{ours}.bias") if part in has_bias else (ours, f"{ours}_bias")
    is_biased = has_bias.get(part, config.norm == "layer")
    kinds = {weight: "weight", **({bias: "bias"} if is_biased else {})}
    return {name: tuple(f"{module}.{kind}" for module in theirs) for name, kind in kinds.items()}


def decoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter that `decoder_tensors` names."""
    hidden, heads = config.hidden_size, config.num_heads + 2 * config.num_kv_heads
    wide = (2 if config.mlp == "gated" else 1) * config.intermediate_size
    matrices = {
        "qkv": (heads * config.head_dim, hidden),
        "out": (hidden, config.num_heads * config.head_dim),
        "gate_up": (wide, hidden),
        "down": (hidden, config.intermediate_size),
        "embedding": (config.vocab_size, hidden),
        "positions": (config.max_position + LEARNED_OFFSET, hidden),
        "lm_head": (config.vocab_size, hidden),
    }

    def shape(name: str) -> tuple[int, ...]:
        owner, _, kind = name.rpartition(".")
        part = owner.rpartition(".")[2]
        if part in matrices:
            return matrices[part] if kind == "weight" else matrices[part][:1]
        return (config.head_dim if kind in _QK_NORMS else hidden,)

    return {name: shape(name) for name in decoder_tensors(config)}
